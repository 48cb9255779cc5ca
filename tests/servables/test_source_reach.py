"""tfs.servables.source_reach."""

from __future__ import annotations

import inspect

import pytest
import torch

from tests.models import (
    bert_encoder,
    digits,
    dlrm,
    mobilenet_v3,
    resnet18,
    seq2seq,
    tacotron,
    unet,
)
from tfs.servables.source_reach import MAX_SOURCE_BYTES, why_module, why_source

OWN = ("helpers", "models.net")


@pytest.mark.parametrize(
    "source",
    [
        "import ctypes",
        "import ctypes.util as u",
        "from ctypes import string_at",
        "from torch import ctypes",
        "import torch\ntorch.ctypes.string_at(0)",
        "import torch\nt = torch\nt.ctypes.string_at(0)",
        "import torch as t\nt.ops.load_library('/tmp/x.so')",
        "import torch.utils.cpp_extension",
        "from torch.utils import cpp_extension",
        "from torch.multiprocessing import Pool",
        "import torch.multiprocessing as mp",
        "import numpy as np\nnp.ctypeslib.as_array(0)",
        "import numpy.ctypeslib",
        "import numpy as np\nnp.memmap('/tmp/x')",
        "import numpy as np\nnp.load('x', mmap_mode='r')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import numpy as np\nnp.lib.stride_tricks.as_strided(x, (9,))",
        "import numpy as np\nx = np.zeros(3).ctypes.data",
        "import torch\ntorch.load('x', weights_only=False)",
        "import torch\ntorch.load('x', mmap=True)",
        "import torch\ntorch.UntypedStorage.from_file('x')",
        "class A:\n  @property\n  def __array_interface__(self): pass",
        "import mmap",
        "import _ctypes",
        "import cffi",
        "import _cffi_backend",
        "import multiprocessing.shared_memory",
        "from concurrent.futures import ProcessPoolExecutor",
        "import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor()",
        "import concurrent.futures as f\nf.process.os",
        "__import__('ctypes')",
        "__import__('cty' + 'pes')",
        "name = 'x'\n__import__(name)",
        "import importlib\nimportlib.import_module('ctypes')",
        "import importlib\nimportlib.import_module(name)",
        "from importlib import import_module as load\nload(name)",
        "from importlib import import_module as load\nx = load",
        "import importlib.util\nimportlib.util.spec_from_file_location('a', 'b')",
        "from importlib.util import module_from_spec",
        "import importlib as i\ni.machinery.ExtensionFileLoader",
        "import builtins\ngetattr(builtins, 'exec')('x')",
        "import builtins as b\nb.eval('x')",
        "import imp\nimp.load_dynamic('a', 'b')",
        "import runpy\nrunpy.run_path('x')",
        "__builtins__['__imp' + 'ort__']('ctypes')",
        "getattr(__builtins__, 'x')",
        "globals()['__buil' + 'tins__']",
        "exec('import os')",
        "eval(text)",
        "f = exec",
        "import torch\ngetattr(torch, 'ctypes')",
        "import torch\ngetattr(torch, 'cty' + 'pes')",
        "import torch\ngetattr(torch.utils, name)",
        "import functools\nfunctools.partial(getattr, x)",
        "from operator import attrgetter\nattrgetter(name)(x)",
        "import torch\ntorch.__dict__['cty' + 'pes']",
        "import torch\nvars(torch)['cty' + 'pes']",
        "import sys\nsys.modules['cty' + 'pes']",
        "from sys import modules",
        "import sys\nsys.setrecursionlimit(10**9)",
        "import sys\nsys._getframe().f_builtins",
        "().__class__.__base__.__subclasses__()",
        "import os\nos.abort()",
        "import os\nos.kill(os.getpid(), 11)",
        "from os import *\nkill(1, 11)",
        "from os import _exit as leave\nleave(1)",
        "import posix\nposix.fork()",
        "import signal\nsignal.raise_signal(11)",
        "from signal import alarm",
        "import faulthandler\nfaulthandler._sigsegv()",
        "import pickle\npickle.load(file)",
        "from pickle import loads",
        "import sqlite3\nc.enable_load_extension(True)",
        "import torch\ntorch.hub.load('a', 'b')",
        "import scipy",
        "from transformers import AutoModel",
        "def f():\n  def g():\n    from sklearn import svm",
        "try:\n  import cv2\nexcept ImportError:\n  pass",
        "from helpers import ctypes",
        "def f(:",
        "x = 1\0",
    ],
)
def test_code_that_may_reach_native_code_or_processes_is_told(source: str) -> None:
    """By an import, a name, or a name that only shows at run time."""
    assert why_source(source, OWN)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\nfrom torch import nn\nimport torch.nn.functional as F",
        "import numpy as np\nnp.frombuffer(b'1234', np.float32)",
        "import json, math, os.path, dataclasses, threading, logging, re",
        "from concurrent.futures import ThreadPoolExecutor",
        "import importlib.resources\nimportlib.resources.files('models')",
        "import importlib\nimportlib.import_module('math')",
        "__import__('json').dumps(1)",
        "import helpers\nfrom models.net import Net\nfrom . import other",
        "import torch_package_importer",
        "class A:\n  def forward(self, x): return getattr(self, f'layer{x}')(x)",
        "import torch\ngetattr(torch, 'relu')(x)",
        "model.eval()\nre.compile('x')\nprocess.kill()\nmodel.modules()",
        "import torch\nx.as_strided((2,), (1,))\ntorch.load('x', weights_only=True)",
        "inputs['signal'], inputs['code'], 'load the library', 'os'",
        "signal = 1\nresource = signal\nsite = code = 2",
        "import tfs.runtime.batched",
        "import signal, subprocess, pickle, faulthandler, resource, builtins",
        "import importlib.util\nimportlib.util.find_spec('scipy')",
        "from torch.utils.data import DataLoader, Dataset",
        "import os\nos.environ['HOME'], os.path.join('a', 'b')",
        "'''Uses no ctypes and no multiprocessing.'''",
        "# -*- coding: latin-1 -*-\nx = 1",
    ],
)
def test_plain_code_of_models_may_run_in_the_server(source: str) -> None:
    """Torch, numpy, Python's library and its own modules, and words that mean nothing."""
    assert why_source(source, (*OWN, "torch_package_importer")) == ""


@pytest.mark.parametrize(
    "module",
    [bert_encoder, digits, dlrm, mobilenet_v3, resnet18, seq2seq, tacotron, unet],
    ids=lambda module: module.__name__,
)
def test_models_as_people_write_them_may_run_in_the_server(module: object) -> None:
    """What nobody wrote with this rule in mind is not kept out by it."""
    source = inspect.getsource(module)  # type: ignore[arg-type]
    assert why_source(source, ("tests",)) == ""


def test_torchs_own_layers_are_code_that_may_run() -> None:
    """Many models begin as a copy of one."""
    assert why_source(inspect.getsource(torch.nn.modules.transformer)) == ""


def test_a_reason_says_where_it_is_and_how_much_is_read() -> None:
    """Whoever reads the status finds the line."""
    assert why_source("import torch\n\nimport ctypes\n") == "imports ctypes (line 3)"
    assert "too long" in why_source("x = 1\n" * MAX_SOURCE_BYTES)
    told = why_module("scipy.sparse")
    assert told.startswith("imports scipy.sparse, which is neither its own nor torch")
