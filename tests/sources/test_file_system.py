"""The file-system source, stepped by hand over a fake file system and clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sources.file_system import FileSystemSource, FileSystemSourceOptions
from sources.servable_to_monitor import StoragePath
from sources.version_policy import All, Latest, Specific
from tests.present import present
from tests.sources.stepped_source import World, monitor, world
from tfs.core.errors import InvalidArgument, NotFound
from tfs.core.source import connect
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_file_system import FakeFileSystem
from tfs.testing.recording_target import RecordingTarget


def test_files_that_appear_after_the_start_are_aspired() -> None:
    """An empty base path gives an empty set, a version in it one with a version.

    file_system_storage_path_source_test: FilesAppearAfterStartup.
    """
    w = world()
    w.files.make_folder("/models/digits")
    assert w.poll() == [("digits", [])]
    w.publish(3)
    assert w.poll() == [("digits", [3])]


def test_the_payload_is_the_directory_as_it_was_found() -> None:
    """Leading zeros stay in the path and vanish from the version.

    file_system_storage_path_source_test: MultipleVersions.
    """
    w = world()
    w.publish(4)
    w.publish("0042")
    w.publish("non_numerical_child")
    w.source.poll_once()
    (call,) = w.target.take()
    (data,) = call.versions
    assert data.id.version == 42
    assert data.payload is not None
    assert data.payload.path == "/models/digits/0042"
    assert data.payload.fingerprint


def test_a_specific_version_is_found_under_leading_zeros() -> None:
    """Version 17 may lie in 00017.

    file_system_storage_path_source_test: SpecificVersionsLeadingZeros.
    """
    w = world(monitor(policy=Specific((17,))))
    w.publish("00017")
    w.source.poll_once()
    (call,) = w.target.take()
    assert present(call.versions[0].payload).path == "/models/digits/00017"


def test_specific_of_nothing_unloads_all() -> None:
    """An empty list of versions is a wish, and is obeyed even by the guard.

    file_system_storage_path_source_test: SpecificVersionsEmpty.
    """
    w = world()
    w.publish(1)
    assert w.poll() == [("digits", [1])]
    w.source.update_config([monitor(policy=Specific())])
    assert w.target.versions("digits") == []
    assert w.source.problems()["digits"] == (
        "no version of digits is asked for: its policy, specific, lists none",
    )


def test_an_outlook_is_of_the_place_that_is_configured_now() -> None:
    """What is aspired from before says nothing of it; what settles may be a version."""
    w = world(settle_s=2.0)
    w.publish(1)
    w.poll()
    assert w.source.outlook("digits") is True
    w.source.update_config([monitor(base_path="/nowhere")])
    assert w.source.outlook("digits") is False
    w.files.write("/later/1/table.csv", b"key,value")
    w.source.update_config([monitor(base_path="/later")])
    assert w.source.outlook("digits") is None
    w.clock.advance(2.0)
    w.poll()
    assert w.source.outlook("digits") is True


def test_each_servable_gets_its_own_call() -> None:
    """One call carries one name.

    file_system_storage_path_source_test: MultipleServables.
    """
    w = world(monitor("a"), monitor("b"))
    w.publish(1, "a")
    w.publish(2, "b")
    assert w.poll() == [("a", [1]), ("b", [2])]


def test_nothing_new_is_nothing_to_say() -> None:
    """A poll that finds what the last one found makes no call."""
    w = world()
    w.publish(1)
    w.poll()
    assert w.poll() == []


def test_what_was_said_is_repeated_now_and_then() -> None:
    """A call that a target lost or failed on is repaired without a change."""
    w = world()
    w.publish(1)
    w.poll()
    w.clock.advance(30)
    assert w.poll() == [("digits", [1])]
    assert w.poll() == []


# -- configuration -----------------------------------------------------------------


def test_what_is_removed_while_others_are_listed_is_not_aspired_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two threads may step a source without a thread: the newer configuration counts."""
    w = world(monitor("a"), monitor("b"))
    for name in ("a", "b"):
        w.publish(1, name)
    w.poll()

    def reconfigure() -> None:
        monkeypatch.setattr("sources.file_system.yield_to_loads", lambda: None)
        w.source.update_config([monitor("a")])

    w.publish(2, "b")
    monkeypatch.setattr("sources.file_system.yield_to_loads", reconfigure)
    assert w.poll() == [("b", [])]
    assert w.poll() == []


def test_a_changed_policy_takes_effect_at_once() -> None:
    """A rollback does not wait for the next poll.

    file_system_storage_path_source_test: ChangeVersionPolicy.
    """
    w = world()
    w.publish(1)
    w.publish(2)
    assert w.poll() == [("digits", [2])]
    w.source.update_config([monitor(policy=Specific((1,)))])
    assert w.last_reason() == "specific(1) of /models/digits: configuration changed"
    assert w.target.versions("digits") == [1]


def test_the_same_version_at_a_new_base_path_is_another_payload() -> None:
    """Moving a model's base path reloads it even where the number stays."""
    w = world()
    w.publish(1)
    w.source.poll_once()
    old = w.target.take()[0].versions[0].payload
    w.files.write("/elsewhere/1/servable.json", b"{}")
    w.source.update_config([monitor(base_path="/elsewhere")])
    new = present(w.target.take()[0].versions[0].payload)
    assert (new.path, new == present(old)) == ("/elsewhere/1", False)


def test_a_servable_left_out_and_back_before_a_look_stays() -> None:
    """Two configurations in quick succession unload nothing that both contain."""
    w = world(monitor("a"), monitor("b"))
    w.publish(1, "a")
    w.publish(1, "b")
    w.poll()
    w.source._thread = object()  # type: ignore[assignment]  # defers the scan
    w.source.update_config([monitor("b")])
    w.source.update_config([monitor("a"), monitor("b")])
    w.source.step()
    assert w.target.take() == []
    w.source._thread = None


def test_a_name_configured_twice_is_refused() -> None:
    """An invalid configuration leaves the one before it in force."""
    w = world()
    w.publish(1)
    with pytest.raises(InvalidArgument, match="digits"):
        w.source.update_config([monitor(), monitor()])
    assert w.poll() == [("digits", [1])]
    with pytest.raises(InvalidArgument, match="digits"):
        FileSystemSourceOptions((monitor(), monitor()))


def test_versions_can_be_required_at_the_start() -> None:
    """With require_versions, a servable without versions is an error.

    file_system_storage_path_source_test: NoVersionsAtStartup.
    """
    w = world(require_versions=True)
    w.files.make_folder("/models/digits")
    with pytest.raises(NotFound, match="digits"):
        w.source.start()
    w.publish(1)
    w.source.start()
    with pytest.raises(NotFound, match="other"):
        w.source.update_config([monitor(), monitor("other")])
    assert w.poll() == [("digits", [1])]


def test_giving_the_same_configuration_again_looks_again() -> None:
    """A reload finds new versions even where nothing is polled."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=0))
    w.publish(1)
    w.source.step()
    w.publish(2)
    w.source.update_config([monitor()])
    assert w.target.versions("digits") == [2]


def test_a_configuration_may_ask_for_no_look_at_what_it_leaves_as_it_was() -> None:
    """Of ten thousand servables only those are listed that are new or changed."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=0))
    w.publish(1)
    w.source.step()
    w.publish(2)
    w.publish(1, "other")
    w.source.update_config([monitor(), monitor("other")], looks_at_all=False)
    assert w.target.versions("digits") == [1]
    assert w.target.versions("other") == [1]
    changed = [monitor(policy=Latest(2)), monitor("other")]
    w.source.update_config(changed, looks_at_all=False)
    assert w.target.versions("digits") == [2, 1]
    assert w.source.wait_applied(w.clock.now())


# -- what must not unload ------------------------------------------------------------


def test_the_last_version_is_not_unloaded_because_it_vanished() -> None:
    """An empty listing keeps the last version loaded, and says so.

    file_system_storage_path_source_test: LastVersionNotRemoved.
    """
    w = world()
    w.publish(1)
    w.poll()
    w.files.remove("/models/digits/1")
    assert w.poll() == []
    assert "what is loaded stays" in " ".join(w.source.problems()["digits"])
    w.publish(2)
    assert w.poll() == [("digits", [2])]
    assert w.source.problems() == {}


def test_the_last_version_is_unloaded_where_that_is_asked_for() -> None:
    """unload_when_empty gives TensorFlow Serving's behaviour."""
    w = world(unload_when_empty=True)
    w.publish(1)
    w.poll()
    w.files.remove("/models/digits/1")
    w.source.poll_once()
    assert w.target.versions("digits") == []
    assert w.last_reason() == "latest(1) of /models/digits: 1 gone"


def test_a_missing_base_path_unloads_nothing_even_then() -> None:
    """An unreadable base path tells nothing about its versions."""
    w = world(unload_when_empty=True)
    w.publish(1)
    w.poll()
    w.files.remove("/models/digits")
    assert w.poll() == []
    assert "does not exist" in w.source.problems()["digits"][0]


def test_one_missing_base_path_affects_only_its_servable() -> None:
    """A fault of one servable does not delay the others; it is said once."""
    w = world(monitor("absent"), monitor("digits"))
    w.publish(1)
    assert w.poll() == [("absent", []), ("digits", [1])]
    w.publish(2)
    assert w.poll() == [("digits", [2])]
    assert list(w.source.problems()) == ["absent"]


def test_a_missing_base_path_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A problem that stays is not logged again at every poll, one that returns is."""
    w = world()
    for _ in range(3):
        w.poll()
    assert len(caplog.records) == 1
    w.publish(1)
    w.poll()
    w.files.remove("/models/digits")
    w.poll()
    assert [r.levelname for r in caplog.records] == ["WARNING", "WARNING"]


def test_directories_renamed_away_are_dropped() -> None:
    """A directory whose name is no number any more is not a version.

    file_system_storage_path_source_test: ServableVersionDirRenamed.
    """
    w = world(monitor(policy=All()))
    for version in (1, 2, 3, 5, 8):
        w.publish(version)
    assert w.poll() == [("digits", [1, 2, 3, 5, 8])]
    w.files.rename("/models/digits/2", "/models/digits/2.denied")
    w.files.rename("/models/digits/5", "/models/digits/5.denied")
    w.files.remove("/models/digits/8")
    assert w.poll() == [("digits", [1, 3])]


def test_duplicate_names_give_one_version() -> None:
    """Several directories for one number aspire it once.

    file_system_storage_path_source_test: DuplicateVersions.
    """
    w = world(monitor(policy=All()))
    for name in ("0001", "001", "00001", "non_numerical_child"):
        w.publish(name)
    assert w.poll() == [("digits", [1])]


# -- reasons and problems --------------------------------------------------------------


def test_reasons_say_what_happened() -> None:
    """Every set carries why it is what it is."""
    w = world(monitor(policy=Latest(2)), unload_when_empty=True)
    w.publish(1)
    reasons = []
    for change in ("", "publish", "remove"):
        if change == "publish":
            w.publish(2)
        elif change == "remove":
            w.files.remove("/models/digits/1")
        w.source.poll_once()
        reasons.append(w.last_reason())
    prefix = "latest(2) of /models/digits: "
    assert reasons == [f"{prefix}found 1", f"{prefix}2 appeared", f"{prefix}1 gone"]


# -- stepping and scheduling -------------------------------------------------------------


def test_polling_follows_the_period() -> None:
    """Without events a servable is looked at once per poll_wait_s."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=5.0))
    w.publish(1)
    due_s = w.source.step()
    assert due_s == w.clock.now() + 5.0
    w.publish(2)
    w.clock.advance(4)
    w.source.step()
    assert w.target.versions("digits") == [1]
    w.clock.advance(1)
    w.source.step()
    assert w.target.versions("digits") == [2]


def test_a_configuration_that_changes_nothing_stops_no_looks() -> None:
    """A reload for one model leaves another polled, and its new version settling."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=5.0, settle_s=2.0))
    w.publish(1)
    w.source.step()
    w.source.update_config([monitor(), monitor("other")])
    w.publish(2)
    w.clock.advance(5)
    w.source.step()
    assert w.target.versions("digits") == [2]
    w.files.write("/models/digits/3/table.csv", b"")
    w.source.update_config([monitor()])
    due_s = w.source.step()
    assert due_s == w.clock.now() + 2
    w.clock.advance(2)
    w.source.step()
    assert w.target.versions("digits") == [3]


def test_a_period_of_zero_looks_once() -> None:
    """poll_wait_s = 0 looks once, and again only for a new configuration.

    file_system_storage_path_source_test: PollFilesystemOnlyOnce.
    """
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=0))
    w.publish(1)
    assert w.source.step() is None
    w.publish(2)
    w.clock.advance(3600)
    assert w.source.step() is None
    assert w.target.versions("digits") == [1]
    w.source.update_config([monitor(policy=Latest(2))])
    assert w.target.versions("digits") == [2, 1]


def test_a_change_is_looked_at_at_once_but_not_in_a_frenzy() -> None:
    """A noted change brings the look forward; a burst of them brings one."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=60))
    w.publish(1)
    w.source.step()
    w.publish(2)
    calls = w.files.num_calls
    for _ in range(100):
        w.source.mark_changed("/models/digits")
        w.source.step()
    assert w.files.num_calls == calls
    w.clock.advance(0.05)
    w.source.step()
    assert w.target.versions("digits") == [2]
    w.clock.advance(1)
    w.source.mark_changed("/models/digits")
    assert w.source.step() == w.clock.now() + 60


def test_what_changes_while_a_look_goes_on_is_looked_at_again() -> None:
    """An event that comes during a long look is not taken for one that it has seen."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=600))
    w.publish(1)
    list_directories = w.files.list_directories

    def slowly(path: str) -> Sequence[str]:
        found = list_directories(path)
        if not w.target.calls:  # the first look: a version comes behind its back
            w.clock.advance(0.5)
            w.publish(2)
            w.source.mark_changed("/models/digits")
            w.clock.advance(0.5)
        return found

    w.files.list_directories = slowly  # type: ignore[method-assign]
    next_s = w.source.step()
    assert w.target.versions("digits") == [1]
    assert next_s == w.clock.now() + 1.0  # it rests for as long as it took
    w.clock.advance(1.0)
    w.source.step()
    assert w.target.versions("digits") == [2]


def test_a_settling_directory_is_looked_at_when_it_may_have_settled() -> None:
    """The next look is when the quiet time would be over, not a poll later."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=600, settle_s=2))
    w.files.write("/models/digits/1/table.csv", b"")
    assert w.source.step() == w.clock.now() + 2
    w.clock.advance(2)
    w.source.step()
    assert w.target.versions("digits") == [1]


def test_a_change_concerns_all_that_share_its_base_path() -> None:
    """However they are written; who lies above or below has events of its own."""
    paths = {"a": "/m/a", "b": "/m/b/", "twin": "/m/a/", "deep": "/m/a/deep"}
    w = World(
        FileSystemSourceOptions(
            tuple(monitor(name, base_path=path) for name, path in paths.items()),
            poll_wait_s=600,
        )
    )
    for path in ("/m/a", "/m/b", "/m/a/deep"):
        w.files.write(f"{path}/1/servable.json")
    w.source.step()
    for path in ("/m/a", "/m/b", "/m/a/deep"):
        w.files.write(f"{path}/2/servable.json")
    for path, names in (("/m/a", ["a", "twin"]), ("/m/b", ["b"]), ("/m", [])):
        w.target.take()
        w.clock.advance(1.0)
        w.source.mark_changed(path)
        w.source.step()
        assert [call.name for call in w.target.take()] == names


def test_what_is_said_again_is_looked_at_now_and_waited_for() -> None:
    """A target then tries again what failed; an unknown name is ignored."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=600))
    w.publish(1)
    w.source.step()
    w.target.take()
    w.source.say_again("nobody")
    assert w.target.take() == []
    w.source.say_again("digits")
    assert [call.name for call in w.target.take()] == ["digits"]
    assert w.source.wait_applied(w.clock.now())
    w.source.step()
    assert w.target.take() == []


class _Choosy(FakeFileSystem):
    """Files, of which nobody can say where those called bad lie."""

    def place(self, path: str) -> str:
        if "bad" in path:
            raise ValueError("no path")
        return super().place(path)


def test_a_path_that_nobody_can_place_is_its_servables_problem() -> None:
    """The others are looked at in the same round, and it in the next one."""
    clock = FakeClock()
    files = _Choosy(clock)
    source = FileSystemSource(
        FileSystemSourceOptions((monitor("bad"), monitor("good")), poll_wait_s=5),
        file_system=files,
        clock=clock,
    )
    target: RecordingTarget[StoragePath] = RecordingTarget()
    connect(source, target)
    files.write("/models/good/1/servable.json")
    assert source.step() == clock.now() + 5
    assert target.versions("good") == [1]
    assert source.problems() == {"bad": ("cannot look at /models/bad of bad: no path",)}
    # Gathered once in a look: each model's status asks for it.
    assert source.problems() is source.problems()


def test_nothing_is_said_before_a_target_is_connected() -> None:
    """An unconnected source reads nothing and loses nothing."""
    clock = FakeClock()
    files = FakeFileSystem(clock)
    source = FileSystemSource(
        FileSystemSourceOptions((monitor(),), poll_wait_s=-1),
        file_system=files,
        clock=clock,
    )
    files.write("/models/digits/1/servable.json")
    source.poll_once()
    assert files.num_calls == 0
    target: RecordingTarget[StoragePath] = RecordingTarget()
    connect(source, target)
    source.poll_once()
    assert target.versions("digits") == [1]


def test_a_closed_source_says_nothing() -> None:
    """After close no call comes, whoever polls."""
    w = world()
    w.publish(1)
    w.source.close()
    assert w.poll() == []
    w.source.close()


def test_a_target_that_fails_stops_only_its_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The other servables are told, and the failed one is told again later."""
    clock = FakeClock()
    files = FakeFileSystem(clock)
    told: list[str] = []

    def callback(aspired: object) -> None:
        name = aspired.name  # type: ignore[attr-defined]
        told.append(name)
        if name == "a":
            raise RuntimeError("no")

    source = FileSystemSource(
        FileSystemSourceOptions((monitor("a"), monitor("b")), poll_wait_s=-1),
        file_system=files,
        clock=clock,
    )
    source.set_aspired_versions_callback(callback)
    for name in ("a", "b"):
        files.write(f"/models/{name}/1/servable.json")
    source.poll_once()
    assert told == ["a", "b"]
    clock.advance(30)
    source.poll_once()
    assert told == ["a", "b", "a", "b"]


def test_every_failing_call_leaves_the_aspired_set_alone() -> None:
    """Whichever file-system call fails, no version is unloaded; the next poll mends it.

    The n-th call fails for n = 1, 2, ... until a poll no longer reaches it.
    """
    index = 0
    while True:
        index += 1
        w = world(monitor("a", All()), monitor("b"))
        for name in ("a", "b"):
            w.publish(1, name)
            w.publish(2, name)
        w.poll()
        w.publish(3, "a")
        w.publish(3, "b")
        calls = w.files.num_calls
        w.files.fail_call(index)
        told = dict(w.poll())
        reached = w.files.num_calls - calls >= index
        for name, kept in (("a", {1, 2}), ("b", set())):
            if name in told:
                assert kept <= set(told[name])
                assert told[name]
        told |= dict(w.poll())
        assert told == {"a": [1, 2, 3], "b": [3]}
        if not reached:
            break
    assert index > 10


# -- with the thread, by the fake clock -----------------------------------------------


def test_the_thread_polls_by_the_clock() -> None:
    """The source's own thread looks when its clock says so, and ends on close."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=5.0, watch=False))
    w.publish(1)
    with w.source:
        assert w.target.wait_for(lambda calls: len(calls) == 1)
        w.clock.block_until_sleepers(1)
        w.publish(2)
        w.clock.advance(5)
        assert w.target.wait_for(lambda calls: len(calls) == 2)
        w.source.update_config([monitor(policy=Specific((1,)))])
        assert w.source.wait_applied(w.clock.now() + 5)
        assert w.target.versions("digits") == [1]
    assert w.clock.num_sleepers == 0


def test_the_thread_looks_when_it_is_asked() -> None:
    """A look that is asked for does not wait, even if the source looks only once."""
    w = World(FileSystemSourceOptions((monitor(),), poll_wait_s=0, watch=False))
    w.publish(1)
    with w.source:
        assert w.target.wait_for(lambda calls: len(calls) == 1)
        w.publish(2)
        w.source.look_soon()
        assert w.target.wait_for(lambda calls: len(calls) == 2)
        assert w.target.versions("digits") == [2]
