"""How to install what an optional part of the package stands on."""

from importlib import metadata


def install_line(extra: str) -> str:
    """The command that installs an extra's packages, whether or not an index has manyheads itself.

    Args:
        extra: Its name in pyproject.toml, such as "plots".

    Example:
        >>> install_line("plots").startswith('pip install "matplotlib')
        True
    """
    try:
        required = metadata.requires("manyheads") or []
    except metadata.PackageNotFoundError:  # a checkout that was put on the path
        required = []
    wanted = [
        package.strip()
        for package, _, marker in (line.partition(";") for line in required)
        if marker.strip() == f"extra == '{extra}'"
    ]
    return "pip install " + " ".join(f'"{package}"' for package in wanted or [f".[{extra}]"])
