"""The rules of the simulated mount, as plays for two clients: each says what it saw, on the kernel's or the simulated.

What the kernel shows must be among what the simulator shows of the same play, over many seeds. The simulator may show
more. The names of its tests (tests/simulation/test_mount.py, test_mount_failures.py) say which of its rules a play
covers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.nfs_lab.two import OWNER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tests.nfs_lab.two import Two

HIDDEN_S_MAX: Final = 60.0
"""For how long a name may be hidden by its absence, after it was made: acdirmax."""
NAMES: Final = 8


@dataclass(frozen=True, slots=True)
class Rule:
    """One play: ``tests``, of those files, whose rule it shows; ``rounds``, how often on the kernel's mount."""

    title: str
    play: Callable[[Two], list[str]]
    tests: tuple[str, ...]
    rounds: int = 5


def closed(two: Two) -> list[str]:
    two.call("a", "append", "d/x", "one", 0)
    first = two.call("b", "read", "d/x")
    two.call("a", "append", "d/x", "two", 3)
    return [f"{first}, then {two.call('b', 'read', 'd/x')}"]


def sizes(two: Two) -> list[str]:
    seen = []
    for size in (0, 3):
        two.call("a", "append", "d/x", "one", size)
        seen.append(str(two.call("b", "size_of", "d/x")))
    return [", then ".join(seen)]


def absent_name(known_s: float, two: Two) -> list[str]:
    """Look for names in vain, and once more in the directory when it has not changed for so long; time from then."""
    waiting = [f"d/{number}" for number in range(NAMES)]
    for path in waiting:
        two.call("b", "read", path)
    if known_s:
        two.sleep(known_s)
        two.call("b", "read", "d/other")
    made = {}
    for path in waiting:
        two.call("a", "publish", path, "1")
        made[path] = two.now()
    seen = []
    oldest = dict.fromkeys(waiting, 0.0)
    """For how long, at least, a name was hidden after it was made."""
    while waiting:
        for path in list(waiting):
            age = two.now() - made[path]
            if two.call("b", "read", path) is None:
                oldest[path] = age
            if oldest[path] < age or age > 2 * HIDDEN_S_MAX:
                waiting.remove(path)
                seen.append(_hidden(oldest[path]))
        two.sleep(1)
    return seen


def _hidden(seconds: float) -> str:
    if seconds > HIDDEN_S_MAX / 2:
        return "hidden for longer" if seconds > HIDDEN_S_MAX else "hidden for 30 to 60 s"
    return "hidden for up to 30 s" if seconds else "seen at once"


def absent_directory(two: Two) -> list[str]:
    two.call("b", "look", "d/e", ["x"])
    two.call("a", "ensure_directory", "d/e")
    two.call("a", "publish", "d/e/x", "1")
    return ["hidden" if two.call("b", "look", "d/e", ["x"]) is None else "seen"]


def found_meanwhile(verb: str, two: Two) -> list[str]:
    seen = []

    def slow() -> None:
        rest: tuple[object, ...] = ([],) if verb == "look" else ()
        if two.call("b", verb, "d/e", *rest) is not None:
            again = two.call("b", "look", "d/e", []) is not None
            seen.append("found, then found again" if again else "found, then hidden")
        else:
            seen.append("not found")

    def fast() -> None:
        two.call("b", "look", "d/e", [])
        two.call("a", "ensure_directory", "d/e")

    two.together(slow, fast)
    return seen


def drops_absence(verb: str, two: Two) -> list[str]:
    two.call("b", "read", "d/x")
    two.call("a", "publish", "d/x", "1")
    if verb == "look":
        two.call("b", "look", "d", [])
    else:
        two.call("b", verb, "d" if verb == "list_afresh" else "d/x")
    return ["hidden" if two.call("b", "read", "d/x") is None else "seen"]


def link_race(two: Two) -> list[str]:
    said: dict[str, object] = {}

    def link(who: str) -> None:
        said[who] = two.call(who, "publish", "d/x", who)

    two.together(partial(link, "a"), partial(link, "b"))
    return [f"a {said['a']}, b {said['b']}, the content is of {two.call('b', 'read', 'd/x')}"]


def exclusive(two: Two) -> list[str]:
    two.call("b", "read", "d/x")
    two.call("a", "ensure_marker", "d/x")
    return [f"created {two.call('b', 'ensure_marker', 'd/x')}, link {two.call('b', 'publish', 'd/x', 'late')}"]


def revalidates(two: Two) -> list[str]:
    made: list[str] = []
    missed: set[str] = set()
    names = [str(number) for number in range(NAMES)]

    def make() -> None:
        for name in names:
            two.call("a", "publish", f"d/{name}", "1")
            made.append(name)

    def look() -> None:
        for _ in range(NAMES):
            for verb, rest in (("look", (names,)), ("list_afresh", ())):
                known = set(made)
                missed.update(known - set(_names(two.call("b", verb, "d", *rest))))

    two.together(make, look)
    return [f"missed {len(missed)}"]


def _names(listed: object) -> Collection[str]:
    return [str(name) for name in listed] if isinstance(listed, list) else []


def cut_off(two: Two) -> list[str]:
    two.cut("a", 5)
    said = two.call("a", "publish", "d/x", "1")
    return [f"{said}, {'after' if two.healed() else 'before'} the heal"]


def reader_cut_off(two: Two) -> list[str]:
    two.call("a", "publish", "d/x", "1")
    two.call("b", "read", "d/x")
    two.cut("b", 5)
    said = two.call("b", "read", "d/x")
    return [f"{said}, {'after' if two.healed() else 'before'} the heal"]


def died_cut_off(two: Two) -> list[str]:
    two.killed("ensure_marker", "d/x", cut=3)
    return ["not there" if "x" not in _names(two.call("b", "list_afresh", "d")) else "there, later"]


def died_appending(two: Two) -> list[str]:
    two.killed("append", "d/x", "123456", 0)
    size = two.call("b", "size_of", "d/x") if "x" in _names(two.call("b", "list_afresh", "d")) else "no file"
    return [{"no file": "no file", "0": "nothing", "6": "all"}.get(str(size), "a torn piece")]


def lost_reply(two: Two) -> list[str]:
    said, told = two.lose_reply("d/x", "1")
    return [f"{said}, {'told EEXIST' if told else 'not told EEXIST'}; {two.call('b', 'read', 'd/x')!r} is there"]


def delegated(verb: str, two: Two) -> list[str]:
    two.delegate()
    two.call("a", "append", "d/x", "v1", 0)
    for _ in range(10):
        two.call("b", "read", "d/x")
    begun = two.now()
    two.cut("b", 30)
    two.call("a", "ensure_marker", "d/beside")
    beside = "at once" if two.now() - begun < 4 else "late"
    rest = ("v2", 2) if verb == "append" else ()
    two.call("a", verb, "d/x", *rest)
    took = two.now() - begun
    waited = "at once" if took < 4 else "after its lease" if took < 25 else "after the heal"
    cut = two.call("b", "read", "d/x")
    when = "after" if two.healed() else "before"
    while not two.healed():
        two.sleep(1)
    two.sleep(10)
    return [f"beside {beside}, {verb} {waited}; b reads {cut} {when} the heal, later {two.call('b', 'read', 'd/x')}"]


def recalled(two: Two) -> list[str]:
    two.delegate()
    two.call("a", "append", "d/x", "v1", 0)
    for _ in range(10):
        two.call("b", "read", "d/x")
    two.call("a", "append", "d/x", "v2", 2)
    return [str(two.call("b", "read", "d/x"))]


def opened_before_chmod(uid: int, two: Two) -> list[str]:
    two.call("b", "append", "d/x", "1", 0)
    two.hold("d/x", uid)
    two.chmod("d/x", writable=False)
    said = two.write_held("d/x", "2", uid)
    size = two.call("b", "size_of", "d/x")
    anew = two.call("a", "append", "d/x", "3", size, uid=uid)
    return [f"held: {said}, {size} bytes; anew: {anew}"]


def forbidden_directory(uid: int, two: Two) -> list[str]:
    two.call("b", "ensure_marker", "d/old")
    two.call("b", "ensure_marker", "d/kept")
    two.chmod("d", writable=False)
    said = [
        f"{verb} {two.call('a', verb, f'd/{name}', *rest, uid=uid)}"
        for verb, name, rest in (
            ("ensure_marker", "x", ()),
            ("publish", "y", ("",)),
            ("ensure_directory", "e", ()),
            ("append", "z", ("1", 0)),
            ("unlink", "old", ()),
            ("ensure_marker", "kept", ()),
        )
    ]
    return [f"{', '.join(said)}: {' '.join(_names(two.call('b', 'list_afresh', 'd')))}"]


def chmod_counts(two: Two) -> list[str]:
    two.call("a", "append", "d/x", "1", 0)
    two.chmod("d/x", writable=False)
    first = two.call("a", "append", "d/x", "2", 1)
    two.chmod("d/x", writable=True)
    return [f"{first}, then {two.call('a', 'append', 'd/x', '2', 1)}"]


def made_again(verb: str, two: Two) -> list[str]:
    two.call("b", "ensure_directory", "d/e")
    two.call("b", "list_afresh", "d/e")
    two.call("a", "remove_directory", "d/e")
    two.call("a", "ensure_directory", "d/e")
    two.call("a", "publish", "d/e/x", "1")
    path = "d/e/x" if verb == "read" else "d/e/y"
    rest: tuple[object, ...] = {"publish": ("",), "append": ("1", 0), "look": (["y"],)}.get(verb, ())
    path = "d/e" if verb == "look" else path
    said = [str(two.call("b", verb, path, *rest)) for _ in range(2)]
    if verb == "look":
        return [f"look {said[0]}, read {two.call('b', 'read', 'd/e/x')}"]
    return [f"{said[0]}, then {said[1]}"]


def server_clock(two: Two) -> list[str]:
    return ["the server's" if abs(two.clock_difference() + 3600) < 60 else "not the server's"]


def server_away(two: Two) -> list[str]:
    two.call("a", "publish", "d/x", "1")
    two.restart_server()
    said = two.call("b", "read", "d/x")
    return [f"{said}, {'after' if two.back() else 'before'} it was back"]


def listing(two: Two) -> list[str]:
    made: list[str] = []
    seen: list[str] = []

    def make() -> None:
        for name in ("old", "new"):
            two.call("a", "ensure_marker", f"d/{name}")
            made.append(name)

    def look() -> None:
        known = list(made)
        names = _names(two.call("b", "list_afresh", "d"))
        seen.append(f"{len(names)} names, {'all' if set(names) >= set(known) else 'not all'} that were there")

    two.together(make, look)
    return seen


RULES: Final = (
    Rule("what was closed before an open is read", closed, ("s1_what_was_published_before_a_read_is_read_whole",)),
    Rule("a size is true at once", sizes, ("s3_a_size_is_true_at_once",)),
    Rule("a name looked for in vain", partial(absent_name, 0), ("s6_an_absence_answers_reads_for_up_to_a_minute",), 2),
    Rule("a name looked for in vain, and another 35 s later", partial(absent_name, 35),
         ("s6_an_absence_is_renewed_by_looking_for_another_name_in_vain_but_not_when_its_own_is_there",), 2),
    Rule("a directory looked for in vain", absent_directory, ("s6_an_absent_directory_hides_what_is_made_below_it",)),
    *(
        Rule(
            f"an absence that another process of the machine disproved, {verb}",
            partial(found_meanwhile, verb),
            ("s6_an_absence_is_forgotten_when_any_process_of_the_machine_has_found_the_name",),
            20,
        )
        for verb in ("look", "list_afresh")
    ),
    *(
        Rule(
            f"an absence, after {verb}",
            partial(drops_absence, verb),
            ("s7_opening_or_listing_the_directory_or_creating_the_name_drops_the_absence",),
        )
        for verb in ("look", "list_afresh", "ensure_marker")
    ),
    Rule(
        "both link onto one name",
        link_race,
        ("s8_of_many_links_onto_one_name_one_wins_and_both_clients_win_sometimes",),
        20,
    ),
    Rule("exclusive creation and link, where absence is cached", exclusive,
         ("s8_an_exclusive_creation_is_true_for_everybody",)),
    Rule("names seen after the directory was opened", revalidates,
         ("s9_after_opening_a_directory_every_name_whose_creator_had_returned_is_seen",), 10),
    Rule("who is cut off publishes", cut_off, ("s10_who_is_cut_off_blocks_and_is_answered_after_the_heal",), 3),
    Rule("what a process that died while cut off had asked for", died_cut_off,
         ("s10_the_request_of_a_process_that_died_may_arrive_later",)),
    Rule("a link whose reply was lost, the server crashed", lost_reply,
         ("s11_a_link_whose_reply_was_lost_counts_as_won",), 2),
    *(
        Rule(
            f"a delegated file, its reader cut off: {verb}",
            partial(delegated, verb),
            (
                "s12_who_is_cut_off_reads_old_bytes_by_its_delegation_or_waits_and_new_ones_after_the_heal",
                "s12_who_changes_a_delegated_file_waits_for_a_holder_that_is_cut_off_until_its_lease_is_over",
            ),
            2,
        )
        for verb in ("append", "unlink")
    ),
    Rule("a delegated file, its reader answers", recalled, ("s12_who_answers_is_recalled_and_reads_what_is_new",)),
    Rule("a reader cut off, no delegations", reader_cut_off,
         ("s12_without_delegations_a_reader_that_is_cut_off_waits",), 3),
    *(
        Rule(f"opened before a chmod, by {who}", partial(opened_before_chmod, uid),
             ("s13_what_was_opened_before_a_chmod_lands_for_the_owner_and_for_root",))
        for who, uid in (("the owner", OWNER), ("another user", 1001), ("root", 0))
    ),
    *(
        Rule(
            f"a directory without permission, for {who}",
            partial(forbidden_directory, uid),
            ("s13_nothing_is_made_linked_or_removed_in_a_directory_without_permission_but_by_root",),
        )
        for who, uid in (("the owner", OWNER), ("root", 0))
    ),
    Rule("another client's chmod, at the next opening", chmod_counts,
         ("s14_a_chmod_of_another_client_counts_at_the_next_opening_and_no_verb_tells_a_mode",)),
    *(
        Rule(f"a directory removed and made again: {verb}", partial(made_again, verb),
             ("estale_a_directory_that_was_made_again_is_found_by_who_knows_the_old_one",))
        for verb in ("read", "ensure_marker", "publish", "append")
    ),
    Rule("a directory removed and made again, opened anew", partial(made_again, "look"),
         ("estale_who_opens_the_directory_anew_finds_the_one_that_is_there",)),
    Rule("whose clock stamps", server_clock, ("s15_the_server_has_a_clock_of_its_own",), 2),
    Rule("who is killed while it appends leaves", died_appending,
         ("s16_who_dies_while_it_appends_leaves_all_nothing_or_a_torn_piece",), 6),
    Rule("the server loses its power", server_away,
         ("s17_a_server_that_is_away_loses_nothing_and_everybody_waits",), 2),
    Rule("a listing while names appear", listing,
         ("a_listing_may_miss_what_appears_while_it_runs_and_never_what_was_there",), 20),
)  # fmt: skip

SOFT: Final = "the lab mounts hard, where a call waits and does not fail"
NOT_SHOWN: Final = {
    "a_failed_append_was_done_was_done_in_part_or_not_or_will_be_done": SOFT,
    "a_failure_was_done_was_not_done_or_will_be_done": SOFT,
}
"""Tests of the simulated mount whose rule no play shows, and why."""
