from __future__ import annotations

import pytest

from tfs.core.errors import InvalidArgument
from tfs.export.packaging.script_source import needed_source

SCRIPT = '''\
from __future__ import annotations
import torch
import matplotlib.pyplot as plt
from torch import nn

SCALE = 2.0
TABLE: dict[str, int] = {}
TABLE["a"] = 1
TABLE.update(b=2)
UNUSED = expensive()


def scaled(x):
    """A comment survives."""  # this one too
    return x * SCALE * TABLE["a"]


class Net(nn.Module):
    def forward(self, x):
        return scaled(x)


torch.manual_seed(0)
net = Net()
for epoch in range(3):
    train(net)
if __name__ == "__main__":
    net = train(net)
'''


def test_script_keeps_what_the_class_uses_and_nothing_that_runs() -> None:
    """Only definitions the model needs are kept, word for word, in order."""
    kept = needed_source(SCRIPT, {"Net"})
    assert "class Net" in kept
    assert 'return x * SCALE * TABLE["a"]' in kept
    assert "# this one too" in kept
    for gone in ("matplotlib", "expensive", "manual_seed", "train", "__name__"):
        assert gone not in kept
    assert kept.index("SCALE = 2.0") < kept.index("class Net")


def test_changes_of_a_kept_table_are_kept() -> None:
    """Assignments into a kept object, and calls on it, belong to its definition."""
    kept = needed_source(SCRIPT, {"Net"})
    assert 'TABLE["a"] = 1' in kept
    assert "TABLE.update(b=2)" in kept


REGISTRIES = """\
import functools
import torch

LAYERS = {}


def register(name):
    def enter(item):
        LAYERS[name] = item
        return item
    return enter


def timed(function):
    return functools.wraps(function)(lambda *args: function(*args))


@register("square")
def square(x):
    return power(x)


def power(x):
    return x * x


@functools.singledispatch
def weigh(layer):
    return 1


@weigh.register
def _(layer: torch.nn.ReLU):
    return 2


@timed
def main():
    import_that_trains()


@torch.no_grad()
def evaluate():
    return 1


class Net(torch.nn.Module):
    @timed
    def forward(self, x):
        return LAYERS["square"](x) * weigh(self)


def train(net):
    return LAYERS, net


train(Net())
"""


def test_definitions_that_enter_themselves_into_what_is_kept_are_kept() -> None:
    """A registry that a model looks into is filled by decorators that nobody names."""
    kept = needed_source(REGISTRIES, {"Net"})
    for wanted in ("def square", "def power", "@weigh.register\ndef _(", "def timed"):
        assert wanted in kept
    for gone in ("def evaluate", "def main", "def train", "train(Net())"):
        assert gone not in kept
    without_tables = REGISTRIES.replace('LAYERS["square"](x) * ', "")
    assert "def main" not in needed_source(without_tables, {"Net"})
    assert "def square" not in needed_source(without_tables, {"Net"})


def test_decorated_and_conditional_definitions_are_kept_whole() -> None:
    """A decorator belongs to its function, a try to all names it binds."""
    source = (
        "import functools\n"
        "try:\n    import fast\nexcept ImportError:\n    fast = None\n"
        "@functools.cache\ndef f():\n    return fast\n"
    )
    kept = needed_source(source, {"f"})
    assert kept == source


def test_quoted_annotation_counts_as_use() -> None:
    """A name in quotes is looked up later all the same."""
    source = "class Config:\n    pass\ndef f(c: 'Config'):\n    return c\n"
    assert "class Config" in needed_source(source, {"f"})


def test_calls_on_libraries_are_left_out_wherever_they_stand() -> None:
    """A script that seeds or saves before its class is not run again on a server."""
    source = (
        "import torch\n"
        "torch.manual_seed(0)\n"
        "other = train()\n"
        "torch.save(other, 'other.pt')\n"
        "class Net(torch.nn.Module):\n    pass\n"
        "torch.save(Net(), 'net.pt')\n"
    )
    kept = needed_source(source, {"Net"})
    assert kept == "import torch\nclass Net(torch.nn.Module):\n    pass\n"


def test_text_that_is_no_annotation_names_nothing() -> None:
    """A buffer's name does not bring along what the script calls so."""
    source = (
        "mask = read('data.csv')\n"
        "class Config:\n    pass\n"
        "class Net:\n"
        "    def __init__(self, config: 'Config | None') -> None:\n"
        "        self.register_buffer('mask', config)\n"
    )
    kept = needed_source(source, {"Net"})
    assert "data.csv" not in kept
    assert "class Config" in kept


def test_a_function_s_own_names_bring_nothing_along() -> None:
    """A loop of the script that exports is not part of a class with such a parameter."""
    source = (
        "import torch\n"
        "seen = {}\n"
        "class Net(torch.nn.Module):\n"
        "    size = 3\n"
        "    def __init__(self, scale):\n"
        "        self.rows = [row * scale for row in range(self.size)]\n"
        "        def note(mark):\n"
        "            global seen\n"
        "            seen = mark\n"
        "for scale in (1, 2):\n    save(Net(scale))\n"
        "for row in rows():\n    save(row)\n"
        "size = mark = measure()\n"
    )
    kept = needed_source(source, {"Net"})
    assert kept.endswith("seen = mark\n")
    assert "seen = {}\n" in kept


def test_names_that_functions_share_with_the_script_are_kept() -> None:
    """Defaults, bases, decorators, annotations and closures look up the script's names."""
    source = (
        "from __future__ import annotations\n"
        "base = object\nwidth = 3\nHint = int\nfactor = 2\nname = 'x'\n"
        "class Net(base):\n"
        "    name = name\n"
        "    def __init__(self, width=width, hint: Hint = 0):\n"
        "        self.run = lambda x: [x * factor for _ in range(width)]\n"
    )
    assert needed_source(source, {"Net"}) == source


@pytest.mark.parametrize(
    "mark", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
)
def test_only_what_python_takes_for_a_line_break_ends_a_line(mark: str) -> None:
    """A definition below any other is cut out whole."""
    lines = [f"NOTE = 'one{mark} two'", f"# {mark}", "", "def limit(x):"]
    lines += ["    if x > 10:", "        x = 10", "    return x", "print(limit(3))"]
    definition = "\n".join(lines[3:7]) + "\n"
    for end in ("\n", "\r\n", "\r"):
        assert needed_source(end.join(lines), {"limit"}) == definition


def test_statements_in_the_line_of_a_definition_stay_behind() -> None:
    """A line is not a statement."""
    source = "é = 1; SCALE = (2,\n  3); train()\ndef f():\n    return SCALE\n"
    wanted = "SCALE = (2,\n  3)\ndef f():\n    return SCALE\n"
    assert needed_source(source, {"f"}) == wanted


BLOCKS = """\
with open("log.txt", "a") as log:
    torch.backends.cudnn.benchmark = True
    print("training", file=log)
for epoch in range(3):
    torch.backends.cudnn.deterministic = True
while False:
    import torch.cuda
torch.backends.cudnn.enabled = True
"""


def test_blocks_that_run_stay_behind() -> None:
    """Whatever they set of an imported module, no server trains."""
    source = f"import torch\n{BLOCKS}class Net(torch.nn.Module):\n    pass\n"
    kept = needed_source(source, {"Net"})
    assert kept == "import torch\nclass Net(torch.nn.Module):\n    pass\n"


@pytest.mark.parametrize(
    "block",
    [
        "for SIZE in range(3):\n    pass\n",
        "with open('sizes') as file:\n    SIZE = int(file.read())\n",
        "while (SIZE := step()) > 3:\n    pass\n",
        "if __name__ == '__main__':\n    SIZE = 4\n",
        "if True:\n    SIZE = 4\n    train()\n",
        "try:\n    import gpu\nexcept ImportError:\n    print('slow')\n    SIZE = 1\n",
        "SIZE = {}\nfor key in 'ab':\n    SIZE[key] = 1\n",
        "SIZE = Config()\nif __name__ == '__main__':\n    SIZE.depth = 3\n",
        "match step():\n    case [SIZE, *_]:\n        pass\n",
    ],
)
def test_name_that_a_block_sets_asks_for_a_module_in_a_file(block: str) -> None:
    """Neither leaving the block out nor taking it along would be right."""
    source = f"class Net:\n    def forward(self, x):\n        return x * SIZE\n{block}"
    with pytest.raises(InvalidArgument, match=r"'SIZE' in a statement.*module of its"):
        needed_source(source, {"Net"})
    assert needed_source(source.replace("* SIZE", "* 2"), {"Net"})
