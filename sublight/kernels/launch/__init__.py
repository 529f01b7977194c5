"""How a kernel written in Triton is called: on a GPU, in the interpreter without one, or compiled ahead for another.

    call.py       one call as a value: the kernel, its grid, its arguments, its constants
    targets.py    the architectures that we compile for, and what limits a block there
    interpret.py  Triton's interpreter with the arithmetic of the GPU
    bits.py       bf16 and fp8 as bits
    guards.py     buffers between zones that nobody may touch
    ahead.py      compiled code for an architecture that is not here
    form.py       how our Triton kernels become kernels of an operator
    support.py    what they become on each architecture, read off their code
"""
