"""This file knows about traces behind http(s) URLs. It is imported for them alone: urllib costs as much as numpy."""

from __future__ import annotations

import http.client
import io
import urllib.error
import urllib.request

from sublight.errors import InputError

TIMEOUT_S = 60


class _Answer(io.RawIOBase):
    """A server's answer, whose breaking off is an OSError like any other stream's."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer

    def read(self, size: int = -1) -> bytes:
        try:
            return self._answer.read(size)
        except http.client.HTTPException as e:
            raise OSError(type(e).__name__) from e

    def close(self) -> None:
        self._answer.close()
        super().close()


def open_url(url: str, name: str) -> io.RawIOBase:
    """The bytes behind a URL. Raises InputError where there are none; `name` is what the input is called in it."""
    try:
        return _Answer(urllib.request.urlopen(url, timeout=TIMEOUT_S))
    except urllib.error.HTTPError as e:
        raise InputError(f"cannot fetch {name}: the server answered {e.code}") from None
    except (OSError, ValueError, http.client.HTTPException) as e:
        reason = type(getattr(e, "reason", e)).__name__
        raise InputError(f"cannot fetch {name}: {reason}; check the address and the network, or download it and name "
                         "the file") from None
