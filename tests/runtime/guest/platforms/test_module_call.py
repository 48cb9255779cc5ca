"""A module is called as torch would, whatever is hooked to it later."""

from __future__ import annotations

import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from tfs.runtime.guest.platforms.module_call import module_call


class Doubler(torch.nn.Module):
    """Outputs twice its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


class Counted(torch.nn.Module):
    """Is called in a way of its own."""

    num_calls = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return x


ONE = torch.ones(1)


def test_a_module_without_hooks_runs_its_forward() -> None:
    """A module without hooks gets its inputs by name, as requests bring them."""
    assert module_call(Doubler())(x=ONE) == 2


def test_hooks_that_come_later_run_too() -> None:
    """Hooks of the module and of all modules run, and their results count."""
    module = Doubler()
    call = module_call(module)
    after = module.register_forward_hook(lambda own, args, output: output + 10)
    assert call(x=ONE) == 12
    after.remove()
    seen: list[torch.nn.Module] = []
    common = register_module_forward_pre_hook(lambda own, args: seen.append(own))
    call(x=ONE)
    common.remove()
    assert seen == [module]
    assert call(x=ONE) == 2
    assert seen == [module]


class Differs(torch.nn.Module):
    """Outputs x - y."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: int = 0) -> torch.Tensor:
        return x - y + z


def test_hooks_that_take_no_keywords_get_inputs_by_position() -> None:
    """They would see nothing of what is passed by name; others get it by name."""
    module = Differs()
    call = module_call(module)
    seen: list[object] = []
    hook = module.register_forward_pre_hook(lambda own, args: seen.append(args))
    assert call(y=ONE, x=2 * ONE) == 1
    assert seen == [(2 * ONE, ONE)]
    assert call(z=3, x=ONE, y=ONE) == 3
    hook.remove()
    module.register_forward_hook(
        lambda own, args, keywords, output: seen.append((args, keywords)),
        with_kwargs=True,
    )
    call(y=ONE, x=2 * ONE)
    assert seen[-1] == ((), {"x": 2 * ONE, "y": ONE})


def test_a_forward_that_is_replaced_counts() -> None:
    """A ``forward`` that is replaced after the load is the one that is called."""
    module = Doubler()
    call = module_call(module)
    module.forward = lambda x: x - 1  # type: ignore[method-assign]
    assert call(x=ONE) == 0


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_what_is_called_its_own_way_is_left_alone() -> None:
    """Classes with a call of their own, scripts, modules that were compiled."""
    own = Counted()
    module_call(own)(x=ONE)
    assert own.num_calls == 1
    script = torch.jit.script(Doubler())
    assert module_call(script) is script
    compiled = Doubler()
    compiled._compiled_call_impl = lambda x: x
    assert module_call(compiled) is compiled
