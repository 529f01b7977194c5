"""The cluster doctor: Results of communication tests -> findings that name a node, a pair, a rail or a rank."""
