"""CLUSTER_SPEC and TF_CONFIG: a cluster in which this replica has a place, or one sentence."""

from typing import Any

from hypothesis import event, example, given
from hypothesis import strategies as st

from tests.fuzz.shapes import as_json, changed
from trainer.cluster.spec import POOL_OF_ROLE, ClusterError, from_env

HOSTS = ("cmle-training-1:2222", "10.0.0.1:2222", "[::1]:2222", "localhost:29500", "host", "host:0", "host:65536", ":1")


@st.composite
def described(draw: st.DrawFn, variable: str) -> dict[str, Any]:
    """A cluster of a chief and a few others, as Vertex AI describes it; in one of ten with odd addresses."""
    roles = [role for role in POOL_OF_ROLE[variable] if role != "master"]
    numbers, is_odd = iter(range(1000, 2000)), draw(st.integers(0, 9)) == 0
    hosts = st.lists(st.sampled_from(HOSTS) if is_odd else st.none(), min_size=1, max_size=4)
    cluster = {role: [host or f"host-{next(numbers)}:2222" for host in draw(hosts)] for role in roles}
    cluster[roles[0]] = ["chief:2222"]
    role = draw(st.sampled_from(roles))
    index = draw(st.integers(0, len(cluster[role]) - 1))
    return {"cluster": cluster, "task": {"type": role, "index": draw(st.sampled_from((index, str(index))))}}


def check(variable: str, text: bytes) -> None:
    try:
        cluster = from_env({variable: text.decode("utf-8", "surrogateescape")})
    except ClusterError as error:
        event("refused")
        sentence = str(error)
        assert sentence.startswith(f"{variable}: ")
        assert len(sentence.splitlines()) == 1
        return
    event("read")
    assert all(0 < node.port < 2**16 and node.host for node in (*cluster.nodes, *cluster.servers))
    assert len({node.address for node in (*cluster.nodes, *cluster.servers)}) == len(cluster.nodes + cluster.servers)
    assert cluster.trains == (cluster.name in [node.name for node in cluster.nodes])
    if cluster.trains:
        assert cluster.nodes[cluster.rank].name == cluster.name
        assert [cluster.node(rank, len(cluster.nodes)) for rank in range(len(cluster.nodes))] == [*cluster.nodes]


@example(b'{"cluster": {"workerpool0": ["a:1"], "workerpool1": ["a:1"]}, "task": {"type": "workerpool0"}}')
@example(b'{"cluster": {"workerpool0": ["a:0"]}, "task": {"type": "workerpool0"}}')
@example(b"[" * 10**5)
@given(as_json(changed(described("CLUSTER_SPEC"))))
def test_any_cluster_spec(text: bytes) -> None:
    check("CLUSTER_SPEC", text)


@given(as_json(changed(described("TF_CONFIG"))))
def test_any_tf_config(text: bytes) -> None:
    check("TF_CONFIG", text)
