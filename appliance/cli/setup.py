"""``tenure init``, ``join`` and ``leave``: set up a cluster, let machines in, and let them go (docs/operators.md).

Each step of leaving may be repeated, and finds what was done. Without the root key it switches the units off, and says
what remains.
"""

from __future__ import annotations

import os
import socket
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Final

from appliance.cluster import Cluster, refuse_root_user, time_sources
from timeagent.agent.bounded_clock import EmbeddedTime
from timeagent.clock import SystemClock
from timeagent.console import Argument, Command, argument, command, note, present
from timeagent.errors import BadConfiguration, BadRequest, Environment, TryAgain
from timeagent.keys import Signer, fingerprint
from timeagent.units import MS, SECOND, Span, parse_span, span_text

from ..admin import membership
from ..admin.moving import moved
from ..admin.trust import check_known, name_taken
from ..bag.ports import Storage
from ..bag.roots import Root, storage_at
from ..doctor.probes import refuse_unfit
from ..formats.names import parse_address
from ..formats.paths import MARKER
from ..formats.policy import Policy, check_policy
from ..formats.shardmap import shard_text
from ..node.own_keys import check_own_keys
from ..node.records import Registers
from ..node.runtime import daemon_lock, runtime_of
from ..node.settings import FILE, ROOT_KEY, Settings, is_there, load_settings, new_directory, node_directories
from . import service
from .opening import EXIT_NO, add_cluster_options, named_root, open_cluster, registers_at, root_key
from .shards import carry_out, check_answer, finish_move, runner

_LOOK_NS: Final = SECOND
"""How often who waits to be let in looks at the trust record."""
_LOOK_FOR_HEIRS_NS: Final = 500 * MS


def _node_name(options: Namespace) -> str:
    return options.node or socket.gethostname().split(".")[0].lower()


def _listen(options: Namespace) -> membership.Listen:
    """Return where the node listens and is reached. Raises BadRequest for an address that nobody could reach.

    Binds a port of the address for a moment: an address that this machine does not have would stop its daemon.
    """
    if options.listen is None:
        if options.address is not None:
            raise BadRequest("no-listen", "--address without --listen: nobody would answer there", hint="add --listen")
        return membership.NOWHERE
    at = parse_address(options.listen)
    reached_at = parse_address(options.address) if options.address else at
    if reached_at.host in ("0.0.0.0", "::"):  # noqa: S104 - refused, not bound
        what = f"other nodes cannot reach {reached_at}: it means every address of this machine"
        raise BadRequest("no-address", what, hint="say where they reach it: --address HOST")
    family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
    try:
        socket.create_server((at.host, 0), family=family).close()
    except OSError as problem:
        what = f"this machine cannot listen at {at.host}: {problem.strerror or problem}"
        hint = "name an address that `ip address` shows, or 0.0.0.0 with --address HOST"
        raise BadRequest("no-address", what, hint=hint) from None
    return membership.Listen(at, reached_at)


type Mounted = Callable[[Namespace, Storage, Root, Settings | None], int]
"""What is done with a root, where this machine is a node already (by these settings), or is not."""


def _setting_up(work: Mounted, options: Namespace) -> int:
    """Do what is done on the mount, as whom that should be; then see to this machine's units."""

    def on_the_mount() -> int:
        refuse_root_user(os.geteuid(), allow_root=options.allow_root)
        root = named_root(options)
        storage = storage_at(root)
        return work(options, storage, root, _there_already(options, storage, root))

    status = service.as_own_user(on_the_mount, allow_root=options.allow_root)
    if status == 0 and options.node_dir is None:  # the units know the usual places only
        service.offered(named_root(options), wanted=not options.no_systemd)
    return status


def _node_dir(options: Namespace) -> Path | None:
    return Path(options.node_dir).absolute() if options.node_dir else None


def _there_already(options: Namespace, storage: Storage, root: Root) -> Settings | None:
    """Return this machine's settings if it is a node of the cluster at this root already, by the name asked for.

    Raises Environment where it is one by another name.
    """
    if not storage.look(".", [MARKER]):
        return None
    marker = membership.read_marker(storage, root)
    named = _node_dir(options)
    places = [named] if named else node_directories(marker.cluster_id)
    place = next((each for each in places if is_there(each / FILE)), None)
    if place is None:
        return None
    settings = load_settings(place)
    if settings.root_key != marker.root_key:
        return None
    if options.node is not None and options.node != settings.node:
        what = f"this machine is node {settings.node} of the cluster at {root} already ({place})"
        raise Environment("key-exists", what, hint=f"say --node {settings.node}, or name another --node-dir")
    registers = registers_at(storage, root)
    check_own_keys(registers, settings)
    own = [entry for entry in registers.newest_trust().keys if entry.node == settings.node]
    if all(entry.revoked_from_ns is not None for entry in own):  # as of one that has left
        raise name_taken(settings.node)
    return settings


def _init(options: Namespace, storage: Storage, root: Root, there: Settings | None) -> int:
    key_file = Path(options.root_key).absolute() if options.root_key else None
    if there is not None:
        policy = registers_at(storage, root).newest_policy()
        said = [
            f"{root} is the root of cluster {policy.cluster_id.hex()[:12]} already; this machine is its node",
            f"{there.node}. Nothing was changed: a cluster keeps its policy.",
        ]
        return _founded(options, there, policy, key_file, said, already=True)
    membership.refuse_not_empty(storage, root)
    if not isinstance(root, Path):
        refuse_unfit(root, os.urandom(6).hex())
    chosen = {f"{name}_ns": parse_span(text) for name in _LENGTHS if (text := getattr(options, name))}
    assumed_ns = parse_span(options.assume_radius)
    policy = Policy(number=1, cluster_id=os.urandom(16), assumed_radius_ns=assumed_ns, **chosen)
    if assumed_ns > policy.radius_ns_max:
        what = f"--assume-radius {span_text(assumed_ns)}: with a clock known so badly nothing would be granted"
        raise BadConfiguration(
            "bad-policy", what, hint=f"say --assume-radius of at most {span_text(policy.radius_ns_max)}"
        )
    check_policy(policy)
    machine = SystemClock()
    # Asked before anything is written: a cluster whose founder has no time could not be used.
    time = EmbeddedTime(machine, time_sources(machine, policy), Signer.generate(), radius_ns_max=policy.radius_ns_max)
    now = time.now().midpoint
    settings = membership.set_up(
        storage, root, _node_name(options), policy, now, _node_dir(options), _listen(options), key_file
    )
    said = [
        f"{root} is now the root of cluster {policy.cluster_id.hex()[:12]}; this machine is its node {settings.node}."
    ]
    _founded(options, settings, policy, key_file, said, already=False)
    if policy.assumed_radius_ns and not options.json:
        good_to = span_text(policy.assumed_radius_ns)
        assumed = f"where no time source has a bound, clocks are assumed to be good to {good_to}"
        note(f"tenure: {assumed}; times made so are labelled")
    return 0


def _founded(
    options: Namespace, settings: Settings, policy: Policy, key_file: Path | None, said: list[str], *, already: bool
) -> int:
    said.append(f"Settings and keys: {settings.directory}. Root key: {fingerprint(settings.root_key)}.")
    if key_file and not already:
        said.append(f"The root key is kept in {key_file}; what changes the cluster's records asks for it.")
    if not already:
        said.append(f"After a holder dies, its domains are free again within {span_text(policy.takeover_ns())}.")
    fields = {
        "root": str(settings.root),
        "cluster": policy.cluster_id.hex(),
        "node": settings.node,
        "node_dir": str(settings.directory),
        "root_key": fingerprint(settings.root_key),
        "root_key_file": str(key_file or settings.directory / ROOT_KEY),
        "takeover_ns": policy.takeover_ns(),
        "assumed_radius_ns": policy.assumed_radius_ns,
        "already": already,
    }
    return present(options, "tenure.init", fields, *said)


def _join(options: Namespace, storage: Storage, root: Root, there: Settings | None) -> int:
    if there is not None:
        return _joined(options, there, already=True)
    marker, registers = membership.read_marker(storage, root), registers_at(storage, root)
    node, listen = _node_name(options), _listen(options)
    place = _node_dir(options) or new_directory(marker.cluster_id)
    if options.root_key is None:
        wait = parse_span(options.wait)  # before anything is made
        membership.check_may_join(registers, place, node, listen.reached_at)
        settings = Settings(place, node, root, marker.root_key, listen=listen.at)
        request = membership.prepared(place, node, listen.reached_at)
        return _ask_and_wait(options, storage, registers, settings, request, wait)
    key, now = membership.load_root_key(Path(options.root_key), marker.root_key, root), SystemClock().realtime_ns()
    code = _joined(options, membership.enroll(registers, root, key, node, now, place, listen))
    note(f"tenure: it has no shard yet; once it runs: tenure shards share {node} --root-key {options.root_key}")
    return code


def _joined(options: Namespace, settings: Settings, *, already: bool = False) -> int:
    place = {"root": str(settings.root), "node": settings.node, "node_dir": str(settings.directory)}
    return present(
        options,
        "tenure.join",
        place | {"already": already},
        f"This machine is node {settings.node} of the cluster at {settings.root}{' already' * already}.",
        f"Settings and keys: {settings.directory}.",
    )


def _ask_and_wait(
    options: Namespace,
    storage: Storage,
    registers: Registers,
    settings: Settings,
    request: membership.Request,
    wait: Span,
) -> int:
    """Ask to be let in, and wait until somebody with the root key does. May be repeated, also after it is done."""
    node, asked = settings.node, request.fingerprint
    if membership.finish(registers, settings, request):
        return _joined(options, settings)
    membership.ask(storage, request)
    note(f"tenure: the cluster's root key is {fingerprint(settings.root_key)}: compare it with what init said")
    note(f"tenure: {node} asks to join. Where the root key is, compare the fingerprint and call:")
    note(f"  tenure trust approve {node} --fingerprint {asked} --root-key FILE --root {settings.root}")
    clock = SystemClock()
    began = clock.boot_ns()
    while clock.boot_ns() - began < wait:
        clock.sleep(min(wait, _LOOK_NS))
        if membership.finish(registers, settings, request):
            return _joined(options, settings)
    raise TryAgain("not-approved", f"nobody has let {node} in within {span_text(wait)}", hint="call it again")


_LENGTHS: Final = {"span": "a bag's span", "grace": "a bag's grace", "rack": "a rack's length"}
_ROOT: Final = argument("root_path ROOT", "the shared directory")
_NO_SYSTEMD: Final = argument("--no-systemd", "leave this machine's units alone")


def _setup_command(summary: str, work: Mounted, *own: Argument) -> Command:
    return command(
        summary,
        lambda options: _setting_up(work, options),
        _ROOT,
        argument("--node NAME", "this machine's name in the cluster (default: its host name)"),
        argument("--listen HOST[:PORT]", "where `node run` answers other nodes, by TCP"),
        argument("--address HOST[:PORT]", "where they reach it, if that is not what --listen says"),
        _NO_SYSTEMD,
        add_cluster_options,
        *own,
    )


def run_leave(options: Namespace) -> int:
    root = named_root(options)
    options.root = str(root)

    def on_the_mount(step: Callable[[Cluster, Namespace], int], nothing: Callable[[], int] = lambda: 0) -> int:
        return service.as_own_user(lambda: _with_cluster(step, options, nothing), allow_root=options.allow_root)

    status = on_the_mount(_hand_over)
    if status == 0 and options.node is None:
        if isinstance(root, Path) and service.is_there() and options.node_dir is None and not options.no_systemd:
            service.switch_off(root)
        status = on_the_mount(_refuse_running)
    gone = {"node": options.node, "left": True, "shards": [], "remains": []}
    return status or on_the_mount(_finish, lambda: present(options, "tenure.leave", gone))


def _with_cluster(step: Callable[[Cluster, Namespace], int], options: Namespace, nothing: Callable[[], int]) -> int:
    """Open the cluster for a step; do ``nothing``, and say so, where this machine is no node of it."""
    try:
        cluster = open_cluster(options)
    except BadConfiguration as problem:
        if problem.code != "not-joined" or options.node is not None:
            raise
        note(f"tenure: {problem.message}: there is nothing to leave")
        return nothing()
    with cluster:
        return step(cluster, options)


def _hand_over(cluster: Cluster, options: Namespace) -> int:
    node = options.node or cluster.settings.node
    check_known(cluster.registers.newest_trust().keys, node)
    if options.root_key is None or membership.has_left(cluster.registers, node, SystemClock().realtime_ns()):
        return 0
    key, newest = root_key(cluster, options), cluster.registers.newest_map()
    if newest.before is not None:  # a move that was cut off, perhaps this one
        finish_move(cluster, key, newest)
    given = membership.given_away(cluster.registers, node, options.to)
    if given:
        way_out = "start tenure-node there, or name nodes that answer: --to NODE"
        check_answer(cluster, lambda before: moved(before, given), way_out)
        carry_out(cluster, key, lambda before: moved(before, given))
    until = cluster.time.boot_ns() + parse_span(options.wait)
    waiting = membership.given_last(cluster.registers, node)  # by this call, or one before it
    while waiting:
        cluster.maps.look()
        waiting = {shard for shard in waiting if runner(cluster, shard) in (None, node)}
        if waiting and cluster.time.boot_ns() >= until:
            what = f"nobody runs shard {', '.join(map(shard_text, sorted(waiting)))} yet; {node} keeps its keys"
            raise TryAgain("not-handed-over", what, hint="tenure shards ls says who should; call it again")
        if waiting:
            cluster.time.sleep(_LOOK_FOR_HEIRS_NS)
    return 0


def _refuse_running(cluster: Cluster, _options: Namespace) -> int:
    """Raise TryAgain while the daemon of this machine runs: without its keys it could not stop in good order."""
    runtime = runtime_of(cluster.settings, cluster.registers.cluster_id)
    if runtime.is_dir() and daemon_lock(runtime).is_held():
        what = f"`tenure node run` of {cluster.settings.node} runs on this machine, and keeps its keys"
        raise TryAgain("daemon-runs", what, hint="end it with SIGINT (Ctrl-C), then call this again")
    return 0


def _finish(cluster: Cluster, options: Namespace) -> int:
    """Revoke the keys, and say what was not done."""
    node = options.node or cluster.settings.node
    now = SystemClock().realtime_ns()
    if options.root_key is not None and not membership.has_left(cluster.registers, node, now):
        key, now = root_key(cluster, options), cluster.time.now().midpoint
        number = membership.revoke(cluster.registers, key, node, now)
        note(f"tenure: trust record {number}: no key of {node} counts from now on")
    left = membership.has_left(cluster.registers, node, now)
    shards = membership.shards_of(cluster.registers, node)
    remains = _remains(cluster, node, shards, left=left, own=options.node is None)
    return present(
        options,
        "tenure.leave",
        {"node": node, "left": left, "shards": shards, "remains": remains},
        f"{node} has left the cluster at {cluster.root}." if left else f"{node} has not left yet.",
        "What is not done:" if remains else "",
        *(f"  {line}" for line in remains),
        status=0 if left else EXIT_NO,
    )


def _remains(cluster: Cluster, node: str, shards: list[int], *, left: bool, own: bool) -> list[str]:
    """Return what it leaves to people, in words; commands where there is one."""
    found = []
    if not left:
        heir = next(iter(membership.heirs(cluster.registers, node)), "NODE")
        found += [f"where the root key is: tenure shards move {each} {heir} --root-key FILE" for each in shards]
        found.append(f"where the root key is: tenure leave {cluster.root} --node {node} --root-key FILE")
    if own:
        found.append(f"settings and keys stay in {cluster.settings.directory}: delete them when nothing needs them")
        found.append("applications of this machine that use the root: end them")
        found.append(f"the mount of {cluster.root}, the package and the user tenure stay")
    else:
        found.append(f"the machine of {node}: end its daemon there, should it come back; it is refused by the others")
    return found


COMMANDS: Final = {
    "init": _setup_command(
        "Make a cluster of an empty directory.",
        _init,
        argument(
            "--root-key FILE",
            "keep the cluster's root key there, or use the one that lies there (default: root.key with the settings)",
        ),
        argument(
            "--assume-radius SPAN",
            "take the machines' clocks to be this good where no time source has a bound: 5ms on a laptop",
            default="0",
        ),
        *(argument(f"--{name} SPAN", f"{what}, for logs that are made from now on") for name, what in _LENGTHS.items()),
    ),
    "join": _setup_command(
        "Let this machine into a cluster.",
        _join,
        argument("--root-key FILE", "root.key of the machine that ran init; without it: ask, and wait for approval"),
        argument("--wait SPAN", "how long to wait for it (default: 10m); then call it again", default="10m"),
    ),
    "leave": command(
        "Take this machine out of its cluster.",
        run_leave,
        _ROOT,
        argument("--root-key FILE", "the cluster's root key; without it: say what remains to do"),
        argument("--node NAME", "another node, which is lost: its machine is asked nothing"),
        argument("--to NODE", "who gets its shards, in turn", action="append", default=[]),
        argument("--wait SPAN", "how long the others may take (default: 60s)", default="60s"),
        _NO_SYSTEMD,
        add_cluster_options,
    ),
}
