"""What a version finds in a fresh process, which is not the author's."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch

from tests.e2e.serving import run_script
from tests.models.adds_one import AddsOne
from tests.models.at_import import Ends
from tests.models.reads_variables import Scaled
from tfs.core.errors import InvalidArgument
from tfs.export import save, save_python
from tfs.export.checking.export_check import prepare_checks

X = torch.ones(2, 3)

SERVABLE = """
{first}
SPEC = {{'dtype': 'float32', 'shape': [-1]}}
class Scaled:
    signatures = {{'serving_default': {{
        'method': 'predict', 'inputs': {{'x': SPEC}}, 'outputs': {{'y': SPEC}}}}}}
    def load(self, version):
        self.by = {by}
    def predict(self, x):
        return {{'y': self.by * x}}
"""


def servable(folder: Path, first: str, by: str) -> Path:
    place = folder / "servable.py"
    place.write_text(SERVABLE.format(first=first, by=by))
    return place


@pytest.mark.parametrize(
    ("how", "message"), [("exit", "with status 3"), ("signal", "by signal 11")]
)
def test_version_that_ends_its_process_leaves_the_authors_alone(
    tmp_path: Path, how: str, message: str
) -> None:
    """The trained model is not lost, and the next version is tried as usual."""
    with pytest.raises(InvalidArgument, match=f"ends the process.*{message}"):
        save(Ends(how), X, tmp_path)
    assert os.listdir(tmp_path) == []
    save(AddsOne(), X, tmp_path)


def test_a_programs_timeout_for_sockets_does_not_end_the_process(
    tmp_path: Path,
) -> None:
    """It waits for the next version, however long that takes."""
    prepare_checks().close()
    socket.setdefaulttimeout(30.0)
    try:
        save(AddsOne(), X, tmp_path)
    finally:
        socket.setdefaulttimeout(None)
    process = prepare_checks()
    save(AddsOne(), X, tmp_path)
    assert prepare_checks() is process


def test_checks_go_on_after_their_process_was_ended(tmp_path: Path) -> None:
    """Whoever kills it costs the next save the time to start another."""
    prepare_checks().close()
    save(AddsOne(), X, tmp_path)


def run(script: str, folder: Path, *options: str) -> str:
    """Returns what it printed."""
    (folder / "train.py").write_text(script)
    return run_script(folder / "train.py", *options, folder=folder)[1]


def test_option_of_the_authors_program_is_not_one_of_servers(tmp_path: Path) -> None:
    """A model that reads the command line when it is imported would answer otherwise."""
    printed = run(
        "import torch, tfs.export\n"
        "from tests.models.at_import import ScaledByOption\n"
        "tfs.export.save(ScaledByOption(), torch.ones(2, 3), 'models')\n",
        tmp_path,
        "3.0",
    )
    assert "DATA_LOSS" in printed
    assert "the command line" in printed


def test_who_needs_the_command_line_is_told_that_servers_have_another(
    tmp_path: Path,
) -> None:
    """The check loads the version with a server's command line, and fails with it."""
    first = "import argparse\np = argparse.ArgumentParser()\n"
    first += "p.add_argument('--by', required=True)"
    with pytest.raises(InvalidArgument, match="If it reads the command line"):
        save_python(servable(tmp_path, first, "p.parse_args().by"), tmp_path / "a")


LIBRARY = """
from torch import nn
WANTED = set()
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        WANTED.add("hidden")
    def forward(self, x):
        return {"y": x + 1, **({"hidden": x * 2} if "hidden" in WANTED else {})}
"""


def test_registration_that_a_constructor_made_is_not_there_on_a_server(
    tmp_path: Path,
) -> None:
    """Loading a model runs no constructor, so what one registered is missing."""
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "zoo.py").write_text(LIBRARY)
    printed = run(
        "import sys; sys.path.append('site-packages')\n"
        "import torch, tfs.export, zoo\n"
        "tfs.export.save(zoo.Model(), torch.ones(2, 3), 'models', extern=['zoo'])\n",
        tmp_path,
    )
    assert "did not return output 'hidden'" in printed


def test_pickle_of_a_class_of_the_script_is_refused(tmp_path: Path) -> None:
    """The script's own process has the class, and no server."""
    (tmp_path / "assets").mkdir()
    servable(
        tmp_path,
        "import pickle",
        "pickle.load(open(version.assets + '/p.pkl', 'rb')) and 2",
    )
    printed = run(
        "import pickle, tfs.export\n"
        "class Doubler:\n"
        "    def twice(self): return 2\n"
        "for each in (Doubler(), Doubler().twice):\n"
        "    pickle.dump(each, open('assets/p.pkl', 'wb'))\n"
        "    try:\n"
        "        tfs.export.save_python('servable.py', 'models', assets='assets')\n"
        "    except Exception as error:\n"
        "        print(error)\n",
        tmp_path,
    )
    refused = "Can't get attribute 'Doubler' on <module '__main__'"
    assert printed.count(refused) == 2, printed
    assert not (tmp_path / "models" / "1").exists()


def test_variables_that_a_model_reads_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server may have them too, so it is no error."""
    save(Scaled(), X, tmp_path / "base")
    assert "variables_read names=TFS_TEST_SCALE,TFS_TEST_SHIFT are" in caplog.text


def test_a_model_that_reads_nothing_is_told_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What torch and Python read on the way is no matter of the model's."""
    save(AddsOne(), X, tmp_path / "base")
    assert "_read" not in caplog.text


def test_variables_that_a_file_asks_for_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Asking whether a variable exists counts as reading it."""
    by = "3 if 'TFS_TEST_SCALE' in os.environ else 2"
    save_python(servable(tmp_path, "import os", by), tmp_path / "base")
    assert "variables_read names=TFS_TEST_SCALE are" in caplog.text
