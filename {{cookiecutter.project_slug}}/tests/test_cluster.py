import json
from typing import Any

import pytest

from trainer.cluster.spec import Cluster, ClusterError, Node, from_env

CHIEF, WORKERS, REDUCERS, EVALUATORS = ("workerpool0", "workerpool1", "workerpool2", "workerpool3")
FULL = {
    CHIEF: ["job-workerpool0-0:2222"],
    WORKERS: ["job-workerpool1-0:2222", "job-workerpool1-1:2222"],
    REDUCERS: ["job-workerpool2-0:2222", "job-workerpool2-1:2222"],
    EVALUATORS: ["job-workerpool3-0:2222"],
}
TRAINING = ["workerpool0-0", "workerpool1-0", "workerpool1-1"]


def cluster_spec(cluster: Any, pool: Any = CHIEF, index: Any = 0, **task: Any) -> dict[str, str]:
    spec = {"cluster": cluster, "environment": "cloud", "task": {"type": pool, "index": index, **task}, "job": {}}
    return {"CLUSTER_SPEC": json.dumps(spec)}


def tf_config(cluster: Any, role: Any = "chief", index: Any = 0, **task: Any) -> dict[str, str]:
    config = {"cluster": cluster, "task": {"type": role, "index": index, "cloud": "c", **task}, "job": "{}"}
    return {"TF_CONFIG": json.dumps(config)}


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [node.name for node in nodes]


def test_with_nothing_set_it_is_a_cluster_of_one() -> None:
    cluster = from_env({})
    assert cluster == Cluster()
    assert (cluster.rank, cluster.trains, len(cluster.nodes)) == (0, True, 1)


def test_empty_variables_are_as_good_as_absent_ones() -> None:
    assert from_env({"CLUSTER_SPEC": "", "TF_CONFIG": ""}) == Cluster()


def test_pools_0_and_1_train_with_the_chief_first() -> None:
    cluster = from_env(cluster_spec(FULL))
    assert names(cluster.nodes) == TRAINING
    assert cluster.chief.address == "job-workerpool0-0:2222"


def test_every_training_replica_finds_its_own_rank_in_the_same_list() -> None:
    ranks = {}
    for name in TRAINING:
        pool, _, index = name.rpartition("-")
        cluster = from_env(cluster_spec(FULL, pool, int(index)))
        ranks[cluster.name] = cluster.rank
        assert names(cluster.nodes) == TRAINING
    assert ranks == {name: rank for rank, name in enumerate(TRAINING)}


def test_reducers_are_known_and_neither_they_nor_evaluators_are_counted() -> None:
    cluster = from_env(cluster_spec(FULL))
    assert names(cluster.servers) == ["workerpool2-0", "workerpool2-1"]
    assert names(cluster.nodes) == TRAINING


@pytest.mark.parametrize(("pool", "index"), [(REDUCERS, 1), (EVALUATORS, 0)])
def test_who_does_not_train_has_no_rank_and_is_told_so(pool: str, index: int) -> None:
    cluster = from_env(cluster_spec(FULL, pool, index))
    assert not cluster.trains
    with pytest.raises(
        ClusterError, match=f"{pool}-{index}: only pools 0 and 1 train; use the evaluator's command in pool 3"
    ):
        _ = cluster.rank


def test_the_number_of_reducers_changes_nothing_for_those_that_train() -> None:
    without = from_env(cluster_spec({pool: FULL[pool] for pool in (CHIEF, WORKERS)}, WORKERS, 1))
    with_many = from_env(cluster_spec(FULL | {REDUCERS: [f"r{i}:2222" for i in range(20)]}, WORKERS, 1))
    assert (without.nodes, without.rank) == (with_many.nodes, with_many.rank)


@pytest.mark.parametrize("workers", [{}, {WORKERS: []}, {WORKERS: None}])
def test_an_empty_pool_and_an_absent_one_are_the_same(workers: dict[str, Any]) -> None:
    cluster = from_env(cluster_spec({CHIEF: ["a:2222"], REDUCERS: ["c:2222"], **workers}))
    assert names(cluster.nodes) == ["workerpool0-0"]
    assert names(cluster.servers) == ["workerpool2-0"]


def test_one_machine_is_a_cluster_of_one_with_an_address_of_its_own() -> None:
    cluster = from_env(cluster_spec({CHIEF: ["job-workerpool0-0:2222"]}))
    assert (cluster.rank, cluster.nodes) == (0, (Node("workerpool0-0", "job-workerpool0-0:2222"),))


def test_an_index_in_quotes_and_keys_of_tomorrow_are_taken() -> None:
    spec = json.loads(cluster_spec(FULL, WORKERS, "1")["CLUSTER_SPEC"]) | {"open_ports": [3333]}
    assert from_env({"CLUSTER_SPEC": json.dumps(spec)}).name == "workerpool1-1"


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("a.b:2222", "a.b", 2222), ("[::1]:80", "::1", 80), ("10.0.0.3:65535", "10.0.0.3", 65535)],
)
def test_an_address_is_a_host_and_a_port(address: str, host: str, port: int) -> None:
    node = Node("workerpool0-0", address)
    assert (node.host, node.port) == (host, port)


@pytest.mark.parametrize("role", ["chief", "master"])
def test_chief_and_master_are_the_same_replica(role: str) -> None:
    cluster = from_env(tf_config({role: ["a:2222"], "worker": ["b:2222"]}, role))
    assert (cluster.name, cluster.rank) == ("workerpool0-0", 0)
    assert names(cluster.nodes) == ["workerpool0-0", "workerpool1-0"]


def test_tf_config_says_the_same_as_cluster_spec() -> None:
    roles = {"chief": FULL[CHIEF], "worker": FULL[WORKERS], "ps": FULL[REDUCERS]}
    spec = {pool: FULL[pool] for pool in (CHIEF, WORKERS, REDUCERS)}
    assert from_env(tf_config(roles, "worker", 1)) == from_env(cluster_spec(spec, WORKERS, 1))


def test_reducers_that_tf_config_lists_as_ps_never_count() -> None:
    cluster = from_env(tf_config({"chief": ["a:2222"], "ps": ["c:2222", "d:2222"]}))
    assert names(cluster.nodes) == ["workerpool0-0"]
    assert names(cluster.servers) == ["workerpool2-0", "workerpool2-1"]


def test_an_evaluator_that_tf_config_does_not_list_knows_its_name_and_does_not_train() -> None:
    cluster = from_env(tf_config({"chief": ["a:2222"], "worker": ["b:2222"]}, "evaluator", 2))
    assert (cluster.name, cluster.trains) == ("workerpool3-2", False)
    assert names(cluster.nodes) == ["workerpool0-0", "workerpool1-0"]


def test_without_a_chief_in_tf_config_the_first_worker_leads() -> None:
    cluster = from_env(tf_config({"worker": ["a:2222", "b:2222"]}, "worker", 1))
    assert (cluster.chief.name, cluster.rank, len(cluster.nodes)) == ("workerpool1-0", 1, 2)


def test_cluster_spec_goes_before_tf_config() -> None:
    both = cluster_spec(FULL, WORKERS, 1) | tf_config({"chief": ["other:1"]})
    assert from_env(both).name == "workerpool1-1"


def test_variables_that_count_machines_are_never_read() -> None:
    node_level = {"RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "5", "MASTER_ADDR": "other", "MASTER_PORT": "1"}
    assert from_env(node_level) == Cluster()
    assert from_env(node_level | cluster_spec(FULL, WORKERS, 0)) == from_env(cluster_spec(FULL, WORKERS, 0))


ONE = {CHIEF: ["a:2222"]}
TWO = {CHIEF: ["a:2222"], WORKERS: ["b:2222"]}
DEEP = "[" * 900 + "]" * 900
SHAPE = 'expected {"cluster": {...}, "task": {...}}'
TASK = 'expected {"type": "workerpool0", "index": 0}'
INDEX = 'expected a whole number, as in "index": 0'

# The problem, the environment, and phrases that the error must contain.
MALFORMED: list[tuple[str, dict[str, str], list[str]]] = [
    ("not JSON", {"CLUSTER_SPEC": "workerpool0"}, ["CLUSTER_SPEC: the text isn't JSON", SHAPE]),
    ("cut short", {"CLUSTER_SPEC": '{"cluster": {"workerpool0"'}, ["CLUSTER_SPEC: the text isn't JSON", SHAPE]),
    ("too deep", {"CLUSTER_SPEC": "[" * 100_000}, ["CLUSTER_SPEC: the text is nested too deeply", SHAPE]),
    ("type is too deep", {"CLUSTER_SPEC": f'{{"cluster": {{}}, "task": {DEEP}}}'}, ["CLUSTER_SPEC: ", "expected"]),
    ("TF_CONFIG, too deep", {"TF_CONFIG": '{"cluster":' * 100_000}, ["TF_CONFIG: the text is nested", SHAPE]),
    ("a list", {"CLUSTER_SPEC": "[]"}, ["CLUSTER_SPEC: the text is []", SHAPE]),
    ("a number", {"CLUSTER_SPEC": "1"}, ["CLUSTER_SPEC: the text is 1", SHAPE]),
    ("null", {"CLUSTER_SPEC": "null"}, ["CLUSTER_SPEC: the text is missing", SHAPE]),
    ("no cluster", {"CLUSTER_SPEC": '{"task": {}}'}, ["cluster is missing", '{"workerpool0": ["host:2222"], ...}']),
    ("cluster is a list", cluster_spec(["a:2222"]), ['cluster is ["a:2222"]', '"host:2222"']),
    ("role for a pool", cluster_spec({"chief": ["a:2222"]}), ["cluster.workerpool0 has 0 replicas", "exactly one"]),
    ("no chief", cluster_spec({WORKERS: ["b:2222"]}, WORKERS), ["cluster.workerpool0 has 0 replicas", "exactly one"]),
    ("two chiefs", cluster_spec({CHIEF: ["a:1", "b:1"]}), ["cluster.workerpool0 has 2 replicas", "exactly one"]),
    ("text for a pool", cluster_spec({CHIEF: "a:2222"}), ['cluster.workerpool0 is "a:2222"', '["host:2222"]']),
    ("no text for a pool", cluster_spec(ONE | {WORKERS: ""}), ['cluster.workerpool1 is ""', '["host:2222"]']),
    ("object for a pool", cluster_spec({CHIEF: {"0": "a:1"}}), ['workerpool0 is {"0": "a:1"}', '["host:2222"]']),
    ("no port", cluster_spec({CHIEF: ["a"]}), ['cluster.workerpool0[0] is "a"', "host:port"]),
    ("empty port", cluster_spec({CHIEF: ["a:"]}), ['[0] is "a:"', "host:port"]),
    ("no host", cluster_spec({CHIEF: [":2222"]}), ['[0] is ":2222"', "host:port"]),
    ("port too large", cluster_spec({CHIEF: ["a:65536"]}), ['[0] is "a:65536"', "host:port"]),
    ("port 0", cluster_spec({CHIEF: ["a:0"]}), ['[0] is "a:0"', "host:port"]),
    ("an address twice", cluster_spec(TWO | {REDUCERS: ["b:2222"]}), ["contains b:2222 twice", "a different address"]),
    ("port in other digits", cluster_spec({CHIEF: ["a:\u00b2"]}), ["[0] is", "host:port"]),
    ("address is a number", cluster_spec({CHIEF: [2222]}), ["[0] is 2222", "host:port"]),
    ("second address", cluster_spec(TWO | {WORKERS: ["b:1", None]}), ["workerpool1[1] is missing", "host:port"]),
    ("no task", {"CLUSTER_SPEC": json.dumps({"cluster": ONE})}, ["task is missing", TASK]),
    ("task is text", {"CLUSTER_SPEC": json.dumps({"cluster": ONE, "task": "chief"})}, ['task is "chief"', TASK]),
    ("unknown type", cluster_spec(ONE, "worker"), ['task.type is "worker"', "expected one of workerpool0"]),
    ("type is a list", cluster_spec(ONE, [CHIEF]), ["task.type is [", "expected one of workerpool0"]),
    ("type is missing", cluster_spec(ONE, None), ["task.type is missing", "expected one of workerpool0"]),
    ("index is text", cluster_spec(ONE, CHIEF, "first"), ['task.index is "first"', INDEX]),
    ("index in other digits", cluster_spec(ONE, CHIEF, "\u00b2"), ["task.index is", INDEX]),
    ("index below 0", cluster_spec(TWO, WORKERS, -1), ["task.index is -1", INDEX]),
    ("index is a fraction", cluster_spec(TWO, WORKERS, 0.5), ["task.index is 0.5", INDEX]),
    ("index is true", cluster_spec(TWO, WORKERS, True), ["task.index is true", INDEX]),
    ("index too large", cluster_spec(TWO, WORKERS, 1), ["task.index is 1", "an index into the 1 replicas"]),
    ("pool without replicas", cluster_spec(ONE, REDUCERS), ["task.index is 0", "the 0 replicas"]),
    ("TF_CONFIG, not JSON", {"TF_CONFIG": "{"}, ["TF_CONFIG: the text isn't JSON", SHAPE]),
    ("TF_CONFIG, pool for a role", tf_config(ONE), ["TF_CONFIG", "expected"]),
    ("TF_CONFIG, unknown role", tf_config({"chief": ["a:1"]}, "boss"), ['task.type is "boss"', "chief, master"]),
    ("TF_CONFIG, nobody trains", tf_config({"ps": ["a:1"]}, "ps"), ["cluster.chief has 0 replicas", "exactly one"]),
    ("TF_CONFIG, role not listed", tf_config({"worker": ["a:1"]}, "chief"), ["task.index is 0", "the 0 replicas"]),
    ("TF_CONFIG, two chiefs", tf_config({"chief": ["a:1"], "master": ["b:1"]}), ["has 2 replicas", "exactly one"]),
    ("TF_CONFIG, two evaluators", tf_config({"chief": ["a:1"], "evaluator": ["b:1"]}, "evaluator", 1), ["index is 1"]),
]


@pytest.mark.parametrize(("environ", "words"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_a_malformed_variable_is_one_sentence_with_the_key_and_the_shape(
    environ: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(ClusterError) as caught:
        from_env(environ)
    (sentence,) = str(caught.value).splitlines()
    assert sentence.startswith(f"{next(iter(environ))}: ")
    assert [word for word in [*words, "expected"] if word not in sentence] == []


def test_a_key_that_the_service_may_add_one_day_is_no_rank() -> None:
    assert from_env(cluster_spec(ONE | {"open_ports": ["a:1"]})).nodes == from_env(cluster_spec(ONE)).nodes
