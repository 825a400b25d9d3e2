"""Whether the local stack is installed: the distribution ``topicberg-local``."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from topicberg.errors import StackError

NAME = "topicberg-local"


def require_local_stack() -> None:
    """Check that the package ``topicberg_local`` can be imported, before it is.

    :raises StackError: it is not installed, or of another version than this library
    """
    try:
        installed, own = version(NAME), version("topicberg")
    except PackageNotFoundError:
        raise StackError(
            f"the local stack is not installed: there is no {NAME}",
            hint="run `pip install 'topicberg[local]'`, or set TOPICBERG_DEPLOYMENT=cloud",
        ) from None
    if installed != own:
        raise StackError(
            f"{NAME} is version {installed}, topicberg is {own}",
            hint=f"run `pip install '{NAME}=={own}'`",
        )
