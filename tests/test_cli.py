"""The command line as a whole: help, version, exit codes, start-up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

import draftsmith
from draftsmith.cli import cli
from draftsmith.cli.app import COMMANDS
from tests.cli_support import error_of, run

USER_ARCH = """
from draftsmith.dsl import Architecture, DecoderHparams, Layer, arch, feeds, graph, matrix, nn, ops

class hp(DecoderHparams):
    pass

@arch("mine")
class Mine(Architecture):
    hparams = hp
    layer = Layer
    token_embd = matrix("token_embd.weight", hp.n_embd, hp.n_vocab)

    @graph
    def decode(self, tokens=feeds.tokens):
        x = nn.embed(self.token_embd, tokens)
        {body}
        return {{"logits": nn.linear(self.token_embd, x)}}
"""


def user_arch(path: Path, body: str = "x = x + x") -> Path:
    """An architecture file of a user's own."""
    path.write_text(USER_ARCH.format(body=body))
    return path


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_the_list_repeats_its_first_line(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0 and result.stdout.startswith(f"Usage: draftsmith {name}")
    with click.Context(cli) as ctx:
        command = cli.get_command(ctx, name)
    assert command is not None and command.help is not None
    assert command.help.split("\n")[0] == COMMANDS[name][1]
    assert all(isinstance(p, click.Argument) or p.help for p in command.params if isinstance(p, click.Option))


def test_help_lists_all_commands_in_order() -> None:
    text = run("--help").stdout
    places = [text.index(f"\n  {name} ") for name in COMMANDS]
    assert places == sorted(places)
    assert run("-h").stdout == text


def test_version() -> None:
    assert run("--version").stdout == f"draftsmith {draftsmith.__version__}\n"


def test_no_arguments_show_the_help() -> None:
    result = run()
    assert result.exit_code in (0, 2)  # 0 before click 8.2
    assert "Commands:" in result.output


def test_wrong_usage_is_one_line_and_exit_code_2() -> None:
    assert error_of("genrate") == "no such command 'genrate'; did you mean 'generate'?"
    assert error_of("xyz").startswith("no such command 'xyz'; known: generate, demo")
    assert error_of("generate", "--nope").startswith("no such option")
    assert error_of("inspect").startswith("missing argument")


def test_help_needs_nothing_heavy() -> None:
    """Start-up time, without a clock."""
    code = (
        "import sys\nfrom draftsmith.cli import cli\n"
        "try: cli.main(['--help'], prog_name='draftsmith')\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'cffi', 'rich', 'jinja2', 'tokenizers', 'gguf', 'draftsmith.dsl'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_an_error_in_a_users_file_is_no_traceback(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import math\nx = math.sqrt(\n")
    assert error_of("list", "--arch", str(broken)).startswith(f"{broken}:2: ")
    failing = tmp_path / "failing.py"
    failing.write_text("x = 1\ny = x / 0\n")
    assert error_of("list", "--arch", str(failing)) == f"{failing}:2: ZeroDivisionError: division by zero"
    empty = tmp_path / "empty.py"
    empty.write_text("")
    assert error_of("list", "--arch", str(empty)) == f"{empty}: defines no architecture (a class with @arch)"
    assert error_of("list", "--arch", str(tmp_path)) == f"{tmp_path}: no such architecture file"


def test_an_error_while_tracing_a_users_file_names_its_line(tmp_path: Path) -> None:
    path = user_arch(tmp_path / "mine.py", "x = x.nothing_of_the_kind")
    result = run("emit", str(path))
    assert result.exit_code == 2 and "Traceback" not in result.stderr
    assert result.stderr.startswith(f"draftsmith: error: {path}:16: AttributeError: ")
    assert result.stderr.splitlines()[1].strip() == "x = x.nothing_of_the_kind"
    path = user_arch(tmp_path / "shapes.py", "x = ops.mul_mat(self.token_embd, tokens)")
    result = run("emit", str(path))
    assert result.exit_code == 2 and "mul_mat" in result.stderr and "Traceback" not in result.stderr


def test_fault_of_our_own_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty() -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("draftsmith.registry.architectures", faulty)
    with pytest.raises(ZeroDivisionError) as caught:
        run("list")
    assert "report it" in "".join(caught.value.__notes__)
