from __future__ import annotations

from tfs.export.packaging.dependency_report import (
    Action,
    DependencyReport,
    ModuleReport,
    Unsaved,
)


def interned(name: str, *imports: str) -> ModuleReport:
    return ModuleReport(name, Action.INTERNED, "your own code", "", imports)


def undecided(name: str) -> ModuleReport:
    return ModuleReport(name, Action.UNRESOLVED, "a library", f'mock=["{name[:3]}.**"]')


def report(*modules: ModuleReport, roots: tuple[str, ...] = ("m",)) -> DependencyReport:
    return DependencyReport({module.name: module for module in modules}, roots)


def test_modules_that_need_the_same_decision_share_a_paragraph() -> None:
    """A library of which fifty modules are imported is one question, not fifty."""
    names = [f"lib.part_{index}" for index in range(7)]
    found = report(interned("m", *names, "odd"), *map(undecided, [*names, "odd"]))
    assert found.advice().split("\n") == [
        "lib.part_0, lib.part_1, lib.part_2, lib.part_3 and 3 more (imported by m)",
        "    a library",
        '    -> mock=["lib.**"]',
        "odd (imported by m)",
        "    a library",
        '    -> mock=["odd.**"]',
    ]


def test_complaint_about_a_large_tree_shows_what_leads_to_a_decision() -> None:
    """Hundreds of modules that are settled hide the one that is not."""
    settled = [f"own_{index}" for index in range(100)]
    found = report(
        interned("m", *settled, "way"),
        *map(interned, settled),
        interned("way", "lib"),
        undecided("lib"),
    )
    assert len(found.tree().split("\n")) > 100
    assert found.complaint().split("\n") == [
        "model",
        "└─ m  interned: your own code",
        "   └─ way  interned: your own code",
        "      └─ lib  UNRESOLVED: a library",
        '           -> mock=["lib.**"]',
        "(102 interned, 1 UNRESOLVED)",
        "(only what leads to these; --explain shows all)",
    ]


def test_complaint_has_an_end() -> None:
    """Whatever hangs together, the message can be read."""
    names = [f"lib.part_{index}" for index in range(500)]
    found = report(interned("m", *names), *map(undecided, names))
    lines = found.complaint().split("\n")
    assert len(lines) < 70
    assert "lines more" in lines[-3]


def test_small_tree_is_shown_whole() -> None:
    """What is settled tells why, too."""
    found = report(interned("m", "own", "lib"), interned("own"), undecided("lib"))
    assert found.complaint() == found.tree()


def test_counts_of_values_alone_stand_alone() -> None:
    """A model of torch's own parts with a value that cannot be saved has no modules."""
    found = DependencyReport({}, (), (Unsaved("model.s", "a lock", "leave it out"),))
    assert found.tree().endswith("\n(1 CANNOT BE SAVED)")
