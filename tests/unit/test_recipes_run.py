"""``Run`` by a hand-driven clock: what is signalled when, reckoned against the expiry that the shard has granted."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from appliance.cli import run as cli_run
from appliance.cli.run import Held
from appliance.formats.lease import Mode
from appliance.recipes import processes as module
from appliance.recipes.processes import BEAT_NS, ProcessTree, Run
from appliance.session.endings import LossReason
from tests.support.cluster import HandSite, hand_sites
from tests.support.mutants import Mutant, check_noticed
from timeagent.errors import BadTime, LeaseLost
from timeagent.units import MINUTE, MS, SECOND, Instant, Span

TERM, KILL, CONT = signal.SIGTERM, signal.SIGKILL, signal.SIGCONT


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path)


class HandTree:
    """A command that does what it is told to: it notes what it gets, and when that was."""

    def __init__(self, stage: "Stage") -> None:
        self._stage = stage
        self.code: int | None = None
        self.living = 1
        self.dies_of: set[int] = {KILL}
        self.got: list[tuple[int | str, Instant]] = []
        self.boots: list[int] = []
        self.started: Mapping[str, str] | None = None
        self.stopped = False

    def start(self, environment: Mapping[str, str]) -> None:
        self.started = environment

    def status(self) -> int | None:
        return self.code

    def send(self, number: int) -> None:
        self._note(number)

    def signal(self, number: int) -> None:
        self._note(number)

    def kill(self) -> None:
        self._note(KILL)

    def over(self) -> bool:
        return not self.living

    def stopped_at_terminal(self) -> bool:
        was, self.stopped = self.stopped, False
        return was

    def suspend(self) -> None:
        self._note("suspend")
        self._stage.pause()

    def resume(self) -> None:
        self._note("resume")

    def _note(self, what: int | str) -> None:
        self.got.append((what, self._stage.site.time.midpoint_ns))
        self.boots.append(self._stage.site.time.boot_ns())
        if what in self.dies_of:
            assert isinstance(what, int)
            self.code = 128 + what if self.code is None else self.code
            self.living = 0

    def at(self, what: int | str) -> list[Instant]:
        return [when for each, when in self.got if each == what]


class Stage:
    """One command under one lease. ``plan``: at how many beats what happens."""

    def __init__(self, site: HandSite) -> None:
        self.site = site
        self.session = site.session("run")
        self.leases = self.session.acquire("d")
        self.lease = self.leases[0]
        self.tree = HandTree(self)
        self.plan: dict[int, Callable[[], object]] = {}
        self.comes: dict[int, list[int]] = {}
        self.pause: Callable[[], object] = lambda: None
        self.beats = 0
        self.notes: list[str] = []
        self.renews = True

    def wait(self, span: Span) -> list[int]:
        assert 0 <= span <= BEAT_NS
        self.beats += 1
        assert self.beats < 10_000, "it never ends"
        self.site.time.advance(max(span, MS))
        self.plan.pop(self.beats, lambda: None)()
        if self.renews:
            with suppress(BadTime):
                self.session.renew_due()
        return self.comes.pop(self.beats, [])

    def pass_over(self, span: Span) -> Callable[[], None]:
        """This process stands still so long, and looks before its renewal thread has asked."""

        def stand_still() -> None:
            self.renews = False
            self.site.time.advance(span)

        return stand_still

    def silence(self) -> None:
        """Whoever asks the shard gets no answer from now on."""
        self.site.transports[0].shard = None

    def run(self) -> int:
        held = Held(self.leases, self.site.time, self.site.policy)
        return Run(held, self.site.time, cast("ProcessTree", self.tree), self.wait, self.notes.append).to_its_end(
            {"A": "b"}
        )

    def lost(self) -> LeaseLost:
        with pytest.raises(LeaseLost) as caught:
            self.run()
        assert caught.value.exit_status == 76
        return caught.value

    def ends(self, code: int) -> Callable[[], None]:
        def end() -> None:
            self.tree.code, self.tree.living = code, self.tree.living - 1

        return end


@pytest.fixture
def stage(site: HandSite) -> Stage:
    return Stage(site)


@pytest.mark.parametrize("code", [0, 1, 75, 76, 127, 137, 255])
def test_exit_code_of_the_command_is_kept(stage: Stage, code: int) -> None:
    stage.plan[3] = stage.ends(code)
    assert (stage.run(), stage.tree.got, stage.tree.started) == (code, [], {"A": "b"})


def test_leases_are_renewed_as_long_as_the_command_runs(stage: Stage) -> None:
    first = stage.lease.expiry_ns
    stage.plan[MINUTE // BEAT_NS] = stage.ends(4)
    assert (stage.run(), stage.tree.got) == (4, [])
    assert stage.lease.expiry_ns > first + MINUTE // 2


# The rule of the whole recipe, against the expiry as the shard granted it, whatever the command does about SIGTERM.
def test_what_cannot_be_renewed_is_ended_before_the_expiry(stage: Stage) -> None:
    stage.plan[100] = stage.silence
    problem = stage.lost()
    expiry = stage.lease.expiry_ns
    (term,), (kill,) = stage.tree.at(TERM), stage.tree.at(KILL)
    assert stage.tree.at(CONT) == [term]
    assert term < kill < expiry - stage.site.policy.holder_margin_ns
    assert problem.code == "lease-lost"
    assert "137" in problem.message


def test_command_that_ends_of_sigterm_gets_no_sigkill(stage: Stage) -> None:
    stage.tree.dies_of = {TERM}
    stage.plan[100] = stage.silence
    assert "143" in stage.lost().message
    assert stage.tree.at(KILL) == []


def test_shard_that_answers_again_in_time_costs_nothing(stage: Stage) -> None:
    transport = stage.site.transports[0]
    transport.script = [None] * 3 + ["lost"] * 4
    stage.plan[400] = stage.ends(0)
    assert (stage.run(), stage.tree.got) == (0, [])


# Its shard has ended it: SIGTERM comes at once, and SIGKILL when it would have expired.
def test_lease_that_is_ended_by_its_shard_leaves_time_until_its_expiry(stage: Stage) -> None:
    def lose() -> None:
        stage.renews = False
        stage.lease.lose("revoked", LossReason.REVOKED)

    stage.plan[7] = lose
    assert "revoked" in stage.lost().message
    (term,), (kill,) = stage.tree.at(TERM), stage.tree.at(KILL)
    grace = Held(stage.leases, stage.site.time, stage.site.policy).grace_ns()
    usable = stage.lease.usable_until_ns(stage.site.policy.holder_margin_ns)
    assert usable - term > grace
    assert kill < usable


# Nobody here knows when the expiry is: not even a second is left to be polite.
def test_lease_whose_clock_is_in_doubt_leaves_no_time(stage: Stage) -> None:
    stage.plan[7] = lambda: stage.lease.lose("suspect", LossReason.CLOCK_UNSAFE)
    stage.lost()
    assert [what for what, _ in stage.tree.got] == [KILL]


@pytest.mark.parametrize("paused", [20 * SECOND, MINUTE, 60 * MINUTE])
def test_after_a_pause_beyond_the_expiry_the_first_thing_sent_is_sigkill(stage: Stage, paused: Span) -> None:
    stage.plan[7] = stage.pass_over(paused)
    stage.lost()
    assert [what for what, _ in stage.tree.got] == [KILL]


# Nobody asked for it meanwhile, so its shard renews it under the same fence: nothing has happened.
def test_pause_that_nobody_used_is_none(stage: Stage) -> None:
    stage.plan[7] = lambda: stage.site.time.advance(MINUTE)
    stage.plan[9] = stage.ends(0)
    assert (stage.run(), stage.tree.got) == (0, [])


def test_command_that_ended_during_a_pause_beyond_the_expiry_was_not_under_its_lease(stage: Stage) -> None:
    def pause() -> None:
        stage.pass_over(MINUTE)()
        stage.ends(0)()

    stage.plan[7] = pause
    assert "ended with 0" in stage.lost().message


def test_command_that_ends_while_the_shard_is_silent_keeps_its_code(stage: Stage) -> None:
    stage.plan[5] = stage.silence
    stage.plan[20] = stage.ends(9)
    assert stage.run() == 9


def unbounded(stage: Stage) -> None:
    def now() -> None:
        raise BadTime("planted", "no bound")

    stage.site.time.now = now  # type: ignore[method-assign,assignment]


def test_time_without_a_bound_is_counted_by_the_boot_clock(stage: Stage) -> None:
    begun, left = stage.site.time.boot_ns(), Held(stage.leases, stage.site.time, stage.site.policy).left_ns()
    stage.plan[1] = lambda: unbounded(stage)
    stage.lost()
    assert begun < stage.tree.boots[0] < stage.tree.boots[-1] < begun + left


def set_back(stage: Stage) -> None:
    stage.site.time.midpoint_ns -= 60 * MINUTE


# The lease that the shard granted ends when it did, whatever this machine's clock says by then.
def test_clock_that_is_set_back_makes_no_lease_longer(stage: Stage) -> None:
    stage.renews = False
    expiry = stage.lease.expiry_ns
    stage.plan[5] = lambda: set_back(stage)
    stage.lost()
    (kill,) = stage.tree.at(KILL)
    assert kill + 60 * MINUTE < expiry


def test_signals_are_passed_on_in_order_and_nothing_else_happens(stage: Stage) -> None:
    passed = [signal.SIGINT, signal.SIGUSR1, signal.SIGWINCH, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT]
    stage.comes[4] = [*passed, signal.SIGCHLD]
    stage.plan[9] = stage.ends(0)
    assert stage.run() == 0
    assert [what for what, _ in stage.tree.got] == passed


@pytest.mark.parametrize("by_terminal", [True, False])
def test_what_was_stopped_goes_on_after_the_lease_was_looked_at(stage: Stage, by_terminal: bool) -> None:  # noqa: FBT001
    if by_terminal:
        stage.plan[4] = lambda: setattr(stage.tree, "stopped", True)
    else:
        stage.comes[4] = [signal.SIGTSTP]
    stage.plan[9] = stage.ends(0)
    assert stage.run() == 0
    assert [what for what, _ in stage.tree.got] == ["suspend", "resume"]


def test_what_was_stopped_for_too_long_never_goes_on(stage: Stage) -> None:
    stage.comes[4] = [signal.SIGTSTP, signal.SIGCONT]
    stage.pause = stage.pass_over(MINUTE)
    stage.lost()
    assert [what for what, _ in stage.tree.got] == ["suspend", KILL]


def test_what_the_command_leaves_behind_is_ended_and_its_code_kept(stage: Stage) -> None:
    stage.tree.living = 2
    stage.plan[5] = stage.ends(3)
    assert stage.run() == 3
    assert [what for what, _ in stage.tree.got] == [TERM, CONT, KILL]


def test_code_is_kept_also_where_the_lease_is_lost_while_the_rest_is_ended(stage: Stage) -> None:
    stage.tree.living = 2
    stage.plan[5] = stage.ends(3)
    stage.plan[6] = lambda: stage.lease.lose("revoked", LossReason.REVOKED)
    assert stage.run() == 3
    (kill,) = stage.tree.at(KILL)
    assert kill < stage.lease.expiry_ns


def test_second_ctrl_c_waits_for_nothing(stage: Stage) -> None:
    stage.tree.living = 2
    stage.plan[5] = stage.ends(3)
    stage.comes[7] = [signal.SIGINT]
    assert stage.run() == 3
    assert stage.beats <= 8


def test_nothing_is_started_under_a_lease_that_is_lost_by_then(stage: Stage) -> None:
    stage.lease.lose("revoked", LossReason.REVOKED)
    stage.lost()
    assert (stage.tree.started, stage.tree.got) == (None, [])


# A process in a system call that cannot be interrupted: it is waited for, and said.
# As where its shard was behind with its ceiling, and granted less at first.
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_that_comes_before_the_lease_is_long_enough_begins_nothing_and_is_in_the_code(
    stage: Stage, number: signal.Signals
) -> None:
    stage.renews = False
    stage.site.time.advance(stage.lease.term_ns * 3 // 4)
    stage.comes = {2: [signal.SIGWINCH, number]}
    assert stage.run() == 128 + number
    assert stage.tree.started is None


def test_what_cannot_be_killed_is_waited_for_and_said(stage: Stage) -> None:
    stage.tree.dies_of = set()
    stage.plan[100] = stage.silence
    stage.plan[2000] = stage.ends(137)
    stage.lost()
    assert sum("outlives" in note for note in stage.notes) == 1


def test_shared_leases_are_reckoned_by_the_first_that_ends(site: HandSite) -> None:
    session = site.session()
    leases = session.acquire("a", "b", mode=Mode.S)
    held = Held(leases, site.time, site.policy)
    both = held.left_ns()
    leases[0].own_expiry_ns -= SECOND
    assert held.left_ns() <= both - SECOND


MUTANTS = {
    "sigkill-after-the-expiry": Mutant(
        module,
        "Run._kill_now",
        "self._held.left_ns() <= self._held.grace_ns() // 2",
        "self._held.left_ns() <= -self._held.grace_ns()",
        test_what_cannot_be_renewed_is_ended_before_the_expiry,
    ),
    "no-sigterm": Mutant(
        module,
        "Run._end",
        "self._command.signal(signal.SIGTERM)",
        "pass",
        test_command_that_ends_of_sigterm_gets_no_sigkill,
    ),
    "stopped-ones-sleep-on": Mutant(
        module,
        "Run._end",
        "self._command.signal(signal.SIGCONT)",
        "pass",
        test_what_cannot_be_renewed_is_ended_before_the_expiry,
    ),
    "polite-after-the-expiry": Mutant(
        module,
        "Run._end",
        "killing = self._kill_now(hurry_boot_ns)",
        "killing = False",
        test_after_a_pause_beyond_the_expiry_the_first_thing_sent_is_sigkill,
        (MINUTE,),
    ),
    "clock-set-back-is-believed": Mutant(
        cli_run,
        "Held.left_ns",
        "expiry - max(now, counted)",
        "expiry - now",
        test_clock_that_is_set_back_makes_no_lease_longer,
    ),
    "goes-on-unseen": Mutant(
        module,
        "Run.to_its_end",
        "resume = self._listen()",
        "resume = self._listen() and (self._command.resume() or True)",
        test_what_was_stopped_for_too_long_never_goes_on,
    ),
    "pause-is-no-loss": Mutant(
        module,
        "Run.to_its_end",
        "code is None or self._held.lost() is not None or self._held.left_ns() <= 0",
        "code is None",
        test_command_that_ended_during_a_pause_beyond_the_expiry_was_not_under_its_lease,
    ),
    "rest-lives-on": Mutant(
        module,
        "Run.to_its_end",
        "self._end(self._clock.boot_ns() + self._held.grace_ns() // 2)",
        "pass",
        test_what_the_command_leaves_behind_is_ended_and_its_code_kept,
    ),
    "loses-the-code": Mutant(
        module, "Run.to_its_end", "return code", "return 0", test_exit_code_of_the_command_is_kept, (3,)
    ),
    "politeness-in-doubt": Mutant(
        module,
        "Run._kill_now",
        "self._held.in_doubt()",
        "False",
        test_lease_whose_clock_is_in_doubt_leaves_no_time,
    ),
}


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_step_is_noticed(name: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    check_noticed(monkeypatch, MUTANTS[name], {"stage": stage})
