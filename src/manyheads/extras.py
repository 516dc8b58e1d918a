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
    wanted = requirements().get(extra) or [f".[{extra}]"]
    return "pip install " + " ".join(f'"{package}"' for package in wanted)


def requirements() -> dict[str, list[str]]:
    """What each extra asks for as pip takes it; by "", what the package itself asks for.

    Returns:
        Nothing where the package is no installed one, but a checkout that was put on the path.

    Example:
        >>> requirements().keys() >= {"plots", "training"}
        True
    """
    try:
        lines = metadata.requires("manyheads") or []
    except metadata.PackageNotFoundError:
        lines = []
    wanted: dict[str, list[str]] = {}
    for line in lines:
        package, _, marker = line.partition(";")
        extra = marker.strip().removeprefix("extra == ").strip("'\"")
        wanted.setdefault(extra, []).append(package.strip())
    return wanted
