"""The command ``tenure``: finds the family of the first word, imports it, and turns errors into exit codes."""

from __future__ import annotations

import sys

if not __debug__:
    sys.stderr.write("tenure: refused to start under python -O: the assertions are part of the program\n")
    sys.exit(2)

if __name__ == "__main__" and sys.argv[1:2] == ["run"] and "--quick" in sys.argv:
    from appliance.recipes.quick_run import quick_run

    if (_code := quick_run(sys.argv[2:])) is not None:
        sys.exit(_code)

import argparse
import contextlib
import importlib
import io
import os
import signal
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from timeagent.errors import INPUT_OUTPUT, INTERRUPTED, SOFTWARE

if TYPE_CHECKING:
    from collections.abc import Sequence

FAMILIES: Final[dict[str, tuple[str, str]]] = {
    "demo": ("appliance.cli.demo", "a cluster on this machine that you can break, then its audit"),
    "doctor": ("appliance.cli.doctor", "whether this directory, machine and clock will do, and if not, why"),
    "probe": ("appliance.cli.doctor", "what two machines see of each other on one mount, measured"),
    "init": ("appliance.cli.setup", "make a cluster of an empty directory"),
    "join": ("appliance.cli.setup", "let this machine into a cluster"),
    "leave": ("appliance.cli.setup", "take this machine, or one that is lost, out of a cluster"),
    "status": ("tui.cli", "whether the cluster works, as seen from here"),
    "policy": ("appliance.cli.trust", "the numbers that the whole cluster shares: show, set"),
    "trust": (
        "appliance.cli.trust",
        "which keys the cluster believes: ls, show, approve, issue, rotate, revoke, move, delegate",
    ),
    "node": ("appliance.cli.node", "run this node's shards, its writer and the metronome; upgrade it"),
    "shards": (
        "appliance.cli.shards",
        "which shards there are, where, and whether they answer: ls, move, reshard, share, finish",
    ),
    "lease": ("appliance.cli.leases", "who holds what: ls, show, watch, hold, acquire, renew, relinquish, revoke"),
    "run": ("appliance.cli.run", "run a command under leases; nothing of it outlives them"),
    "lock": ("appliance.cli.run", "take a lease for a shell, which has it until it unlocks or is gone"),
    "unlock": ("appliance.cli.run", "give back what `lock` took"),
    "publish": ("appliance.cli.messages", "write messages under a lease"),
    "read": ("appliance.cli.messages", "read a log's messages in order"),
    "tail": ("appliance.cli.messages", "follow a log: messages as they become final"),
    "view": ("appliance.cli.messages", "what settled messages add up to: ls, show, advance, prune"),
    "bag": (
        "appliance.cli.bags",
        "look at bags, close and pack what is due: ls, show, close, settle, seal, pack, retain, forecast",
    ),
    "time": ("appliance.cli.clock", "what this node knows of the time: run, now, wait, sources, verify, evidence"),
    "audit": ("auditor.cli", "judge a copy of a tree, offline"),
    "explain": ("auditor.cli", "one finding of the audit, with its evidence"),
    "bundle": ("auditor.cli", "one finding as a tar file that somebody else can audit"),
    "replay": ("auditor.cli", "a copy of a tree at an instant: leases, bags, clocks, deliveries; and what if"),
    "top": ("tui.cli", "the live screen: nodes, leases, bags"),
}

USAGE: Final = 2
TERMINATED: Final = 143


class _Release(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from timeagent import VERSION, core

        sys.stdout.write(f"tenure {VERSION}, core: {core.said()}\n")
        parser.exit()


class _Word(str):
    """A word as it was given: two that say the same are two."""

    __slots__ = ()


class Words(argparse.ArgumentParser):
    """A command's words and options, in any order; its verbs are read so too.

    argparse alone gives an optional word its default at the first option, and refuses the word when it comes. Options
    are known by their whole names: what is short for one here is another option elsewhere.
    """

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - what a parser takes
        super().__init__(allow_abbrev=False, **given)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse them with the words side by side. What stands behind ``--`` is words only."""
        given = list(args or ())
        if not any(each.nargs == argparse.PARSER for each in self._actions):  # but for a verb and what is its own
            end = given.index("--") if "--" in given else len(given)
            front = [_Word(each) for each in given[:end]]
            _, words = self._options().parse_known_args(front)
            options = [each for each in front if not any(each is word for word in words)]
            # An option that may do without a value must not find a word behind it.
            ordered = [*words, *options] if end == len(given) else [*options, *words, *given[end:]]
            given = list(map(str, ordered))
        return super().parse_known_args(given, namespace)

    def _options(self) -> argparse.ArgumentParser:
        """Return a parser that takes the options of this one and does nothing about them."""
        parser = argparse.ArgumentParser(prog=self.prog, add_help=False, allow_abbrev=False)
        parser.error = self.error  # type: ignore[method-assign]
        for each in self._actions:
            if each.option_strings and each.nargs == 0:
                parser.add_argument(*each.option_strings, action="store_true")
            elif each.option_strings:
                parser.add_argument(*each.option_strings, nargs=each.nargs)
        return parser


def overview() -> argparse.ArgumentParser:
    """Return the parser of ``tenure --help``; main() adds the word to it. The manual is made of it too."""
    width = max(map(len, FAMILIES))
    words = "\n".join(f"  {word:{width}}  {summary}" for word, (_, summary) in FAMILIES.items())
    parser = argparse.ArgumentParser(
        prog="tenure",
        description="Leases, timestamped messages in closable bags, and their audit, over one shared directory.",
        epilog=f"commands:\n{words}\n\ntenure COMMAND --help says more. TENURE_ROOT names the root,\n"
        "also for audit; explain, bundle and replay are given a PATH.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Release, nargs=0, help="say which release this is, and exit")
    return parser


def _describe_verbs(parser: argparse.ArgumentParser) -> None:
    """Let the help of a verb say what it is for, as the list of verbs does."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action._choices_actions:
                own = action.choices[verb.dest]
                if own.description is None and verb.help:
                    own.description = f"{verb.help[0].upper()}{verb.help[1:]}."


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code (docs/exit-codes.md); never raises what nobody expected."""
    try:
        from timeagent.console import guarded

        return guarded(lambda: _command(sys.argv[1:] if arguments is None else arguments))
    except Exception:  # noqa: BLE001 - whatever it is, its code is never that of a verdict
        said = f"{traceback.format_exc()}tenure: this is a defect of the program, and no answer [defect]\n"
        with contextlib.suppress(OSError):  # nobody reads it
            sys.stderr.write(said)
            sys.stderr.flush()
        return SOFTWARE
    finally:
        _forget_what_cannot_be_said()


def _command(words: list[str]) -> int:
    parser = overview()
    parser.add_argument("command", metavar="COMMAND", choices=FAMILIES)
    if not words:
        parser.print_help(sys.stderr)
        return USAGE
    chosen = parser.parse_args(words[:1])
    command = importlib.import_module(FAMILIES[chosen.command][0]).COMMANDS[chosen.command]
    own = Words(prog=f"tenure {chosen.command}", description=command.summary)
    command.add_arguments(own)
    _describe_verbs(own)
    status = command.run(own.parse_args(words[1:]))
    assert isinstance(status, int)
    return status


def _forget_what_cannot_be_said() -> None:
    """Send what is left in the buffer nowhere: flushed at the end, it would fail again and change the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _terminated(_number: int, _frame: object) -> None:
    """End as after Ctrl-C: leases are given back, a shard that runs here stops orderly."""
    raise SystemExit(TERMINATED)


def entry() -> int:
    """Run the command line, whatever may interrupt it, also while modules are still being loaded."""
    if None in (sys.stdout, sys.stderr):
        # Somebody closed it. Nothing could be said, and what is opened next would take its number.
        return INPUT_OUTPUT
    if sys.stdin is None:
        # Who reads it is refused; and nothing that is opened takes its number, which a lock's keeper gives away.
        sys.stdin = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - to the end
    signal.signal(signal.SIGTERM, _terminated)
    _hold_repeats_back()
    try:
        _open_what_is_said()
        return main()
    except KeyboardInterrupt:
        sys.stderr.write("tenure: interrupted\n")
        return INTERRUPTED


def _open_what_is_said() -> None:
    from timeagent.console import ESCAPED

    if isinstance(sys.stdout.buffer, io.RawIOBase):
        # Under python -u nobody would see that a full disk or a signal has cut a write short.
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(sys.stdout.buffer), sys.stdout.encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors=ESCAPED)  # type: ignore[union-attr]


def _hold_repeats_back() -> None:
    """Have warnings, which come to stderr where nobody configures logging, come once and then now and then."""
    import logging

    from timeagent.notify import Repeats

    assert logging.lastResort is not None
    logging.lastResort.addFilter(Repeats())


if __name__ == "__main__":
    sys.exit(entry())
