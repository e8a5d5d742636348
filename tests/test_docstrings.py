"""What is public says what it is."""

import inspect
from functools import cached_property
from importlib import import_module
from pkgutil import walk_packages

import pytest

import mpmtl

OF_FLOWER = tuple(f"mpmtl.federation.{name}" for name in ("client", "messages", "secagg", "server"))
MODULES = ["mpmtl", *(info.name for info in walk_packages(mpmtl.__path__, "mpmtl."))]


def function_of(member):
    """The function behind a method or property; None for anything else."""
    if isinstance(member, property):
        return member.fget
    if isinstance(member, cached_property):
        return member.func
    member = getattr(member, "__func__", member)
    return member if inspect.isfunction(member) else None


def undocumented(module):
    """Public functions, classes and methods of a module without a docstring.

    An override of a documented method has that one's; a dataclass's own text is none.
    """
    for name, thing in vars(module).items():
        if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(thing) and not thing.__doc__:
            yield name
        if not inspect.isclass(thing):
            continue
        if not thing.__doc__ or thing.__doc__.startswith(f"{name}("):
            yield name
        for key, member in vars(thing).items():
            bases = [getattr(base, key, None) for base in thing.__mro__[1:]]
            public = function_of(member) and not key.startswith("_")
            if public and not any(inspect.getdoc(m) for m in (member, *bases)):
                yield f"{name}.{key}"


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_has_a_docstring(name):
    if name in OF_FLOWER:
        pytest.importorskip("flwr", reason="Flower is not installed: make federated")
    module = import_module(name)
    assert module.__doc__
    assert list(undocumented(module)) == []


def test_what_lacks_a_docstring_is_named(monkeypatch):
    class Base:
        """Has one."""

        def known(self):
            """Has one."""

    class Thing(Base):
        def known(self):
            pass

        def bare(self):
            pass

        @property
        def value(self):
            pass

    module = import_module("mpmtl.streams")
    Thing.__module__ = module.__name__
    monkeypatch.setattr(module, "Thing", Thing, raising=False)
    assert set(undocumented(module)) == {"Thing", "Thing.bare", "Thing.value"}
