"""Finding plug-ins: by the name of an entry point in the group ``timewheel.plugins``, or as ``package.module:Class``.

The broker knows plug-ins by `store.put.plugin_api.Plugin` only, ours like anybody's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points

from store.put.plugin_api import Plugin

__all__ = ["GROUP", "PluginError", "load_plugin", "load_plugins"]

GROUP = "timewheel.plugins"


class PluginError(Exception):
    """A plug-in that cannot be loaded; the text says which, why, and what there is."""


def load_plugins(names: Iterable[str]) -> list[Plugin]:
    """Make the plug-ins of a configuration, in its order. Raises PluginError."""
    plugins = [load_plugin(name) for name in names]
    seen: set[str] = set()
    for plugin in plugins:
        if plugin.name in seen:
            raise PluginError(
                f"two plug-ins are named {plugin.name!r}: each needs a directory and a section of its own"
            )
        seen.add(plugin.name)
    return plugins


def load_plugin(name: str) -> Plugin:
    """Make one plug-in, not yet opened. Raises PluginError."""
    try:
        factory = _by_path(name) if ":" in name else _by_entry_point(name)
        plugin = factory()
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(f"plug-in {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(plugin, Plugin):
        missing = [member for member in _MEMBERS if not hasattr(plugin, member)]
        raise PluginError(f"plug-in {name!r} is no store.put.plugin_api.Plugin: it lacks {', '.join(missing)}")
    return plugin


_MEMBERS = [*sorted(member for member in dir(Plugin) if not member.startswith("_")), "name"]


def _by_path(name: str) -> Callable[[], object]:
    module_name, _, class_name = name.partition(":")
    found = getattr(importlib.import_module(module_name), class_name, None)
    if found is None:
        raise PluginError(f"plug-in {name!r}: there is no {class_name} in {module_name}")
    return found  # type: ignore[no-any-return]


def _by_entry_point(name: str) -> Callable[[], object]:
    found = entry_points(group=GROUP)
    for point in found:
        if point.name == name:
            return point.load()  # type: ignore[no-any-return]
    known = ", ".join(sorted(point.name for point in found)) or "none"
    raise PluginError(
        f"there is no plug-in {name!r} among the installed ones ({known}); a class is named as package.module:Class"
    )
