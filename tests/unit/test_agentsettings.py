"""time.toml: the defaults, each entry, and each mistake named with its file."""

from pathlib import Path

import pytest

from timeagent.agent.settings import load_agent_settings, parse_agent_settings
from timeagent.errors import BadConfiguration
from timeagent.sources.port import Endpoint
from timeagent.units import SECOND

WHERE = Path("/etc/tenure/time.toml")


def test_without_a_file_the_machines_own_services_are_asked(tmp_path: Path) -> None:
    settings = load_agent_settings(tmp_path)
    assert settings.chrony == Endpoint("127.0.0.1", 323)
    assert settings.clockbound == Path("/var/run/clockbound/shm0")
    assert settings.kernel
    assert (settings.liars, settings.drift_ppm, settings.mount_radius_ns, settings.listen) == (None, 200, 0, None)
    assert settings.evidence == tmp_path / "evidence"
    assert settings.peers == {}


def test_every_entry_is_read() -> None:
    settings = parse_agent_settings(
        'chrony = ""\nclockbound = ""\nkernel = false\ncluster_time = "node1"\nmount_radius = "1s"\n'
        'listen = "[::1]:7425"\nliars = 1\ndrift_ppm = 500\nevidence = "/var/lib/x"\n'
        '[peers]\nnode2 = "10.0.0.2:7425"\n',
        WHERE,
    )
    assert (settings.chrony, settings.clockbound, settings.kernel) == (None, None, False)
    assert (settings.cluster_time, settings.mount_radius_ns) == ("node1", SECOND)
    assert settings.listen == Endpoint("::1", 7425)
    assert (settings.liars, settings.drift_ppm, settings.evidence) == (1, 500, Path("/var/lib/x"))
    assert settings.peers == {"node2": Endpoint("10.0.0.2", 7425)}


def test_paths_that_are_not_absolute_lie_beside_the_settings() -> None:
    settings = parse_agent_settings('evidence = "kept"\nroughtime_servers = "servers.json"\n', WHERE)
    assert settings.evidence == WHERE.parent / "kept"
    assert settings.roughtime_servers == WHERE.parent / "servers.json"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nonsense", "time.toml"),
        ('chronny = ""', "chronny"),
        ("liars = -2", "liars"),
        ("liars = 1000", "liars"),
        ("drift_ppm = 0", "drift_ppm"),
        ("drift_ppm = 200000", "drift_ppm"),
        ('mount_radius = "soon"', "mount_radius"),
        ('mount_radius = "0s"', "mount_radius"),
        ('chrony = "localhost"', "chrony"),
        ('listen = ":7425"', "listen"),
        ('listen = "::1:7425"', "listen"),
        ('listen = "[::1:7425"', "listen"),
        ('listen = "[::1]x:7425"', "listen"),
        ('chrony = "a..b:323"', "chrony"),
        ('listen = "0.0.0.0:99999"', "listen"),
        ('clockbound = "/run/\\u0000"', "clockbound"),
        ('evidence = "a\\u0000"', "evidence"),
        ('roughtime_servers = "\\u0000"', "roughtime_servers"),
        ('[peers]\nnode2 = ""', "peers.node2"),
        ('[peers]\nnode2 = "10.0.0.2:x"', "peers.node2"),
    ],
)
def test_mistake_is_refused_with_the_file_and_the_entry(text: str, named: str) -> None:
    with pytest.raises(BadConfiguration) as refused:
        parse_agent_settings(text, WHERE)
    assert refused.value.code == "bad-time-settings"
    assert str(WHERE) in refused.value.message
    assert named in refused.value.message


def test_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "time.toml").mkdir()
    with pytest.raises(BadConfiguration):
        load_agent_settings(tmp_path)
    (tmp_path / "time.toml").rmdir()
    (tmp_path / "time.toml").write_bytes(b"\xff")
    with pytest.raises(BadConfiguration):
        load_agent_settings(tmp_path)
