#!/usr/bin/python3
"""The public names: signatures as documented, a docstring and a stub for each, and a help() that reads."""

import ast
import importlib
import inspect
import pathlib
import pydoc

import harness
import pytest

import adaptdl

MODULES = ["adaptdl", "adaptdl.checkpoint", "adaptdl.client", "adaptdl.collective", "adaptdl.env", "adaptdl.goodput",
           "adaptdl.policy", "adaptdl.reducer", "adaptdl.sched_hints", "adaptdl.utils"]

# The signatures of the API reference.
REFERENCE = {
    "adaptdl.checkpoint": {
        "State": "(name)", "State.save": "(self, fileobj)", "State.load": "(self, fileobj)", "State.sync": "(self)",
        "load_state": "(state)", "save_all_states": "()", "save_state": "(state, checkpoint_dir, sync=True)"},
    "adaptdl.collective": {
        "allreduce": "(value, reduce_fn=default_reduce_fn)", "allreduce_async": "(value, reduce_fn=default_reduce_fn)",
        "broadcast": "(value)", "teardown": "()",
        "initialize": "(master_addr=None, master_port=None, replica_rank=None, num_replicas=None)"},
    "adaptdl.env": {name: "()" for name in (
        "adaptdl_sched_version", "checkpoint_path", "from_ray", "job_id", "master_addr", "master_port", "num_nodes",
        "num_replicas", "num_restarts", "replica_rank", "share_path", "supervisor_url")},
    "adaptdl.goodput": {
        "GoodputFunction": "(perf_params, grad_params, init_batch_size)",
        "GoodputFunction.efficiency": "(self, batch_size)",
        "GoodputFunction.evaluate": "(self, num_nodes, num_replicas, atomic_bsz, accum_steps)",
        "GoodputFunction.throughput": "(self, num_nodes, num_replicas, atomic_bsz, accum_steps)",
        "GoodputFunction.optimize": "(self, num_nodes, num_replicas, max_batch_size=None, atomic_bsz_range=None, "
                                    "accumulation=False)",
        "GradParams": "(sqr, var)",
        "PerfParams": "(alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma)",
        "fit_perf_params": "(num_nodes, num_replicas, atomic_bsz, accum_step_time, optim_step_time)"},
    "adaptdl.reducer": {
        "Future": "(reducer, key)", "Future.result": "(self)", "Reducer": "(rank, replicas, root_host, root_port)",
        "Reducer.allreduce": "(self, obj, reduce_fn=default_reduce_fn)",
        "Reducer.allreduce_async": "(self, obj, reduce_fn=default_reduce_fn)", "Reducer.broadcast": "(self, obj)",
        "default_reduce_fn": "(a, b)"},
    "adaptdl.sched_hints": {"post_sched_hints": "(sched_hints, job_key)"},
    "adaptdl.utils": {"print_exc": "(function)"},
}


def resolve(module, name):
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def signature(thing):
    def default(value):
        return value.__name__ if inspect.isfunction(value) else repr(value)
    return "(" + ", ".join(
        name if p.default is p.empty else f"{name}={default(p.default)}"
        for name, p in inspect.signature(thing).parameters.items()) + ")"


@pytest.mark.parametrize("module", REFERENCE)
def test_signatures_are_those_of_the_reference(module):
    for name, wanted in REFERENCE[module].items():
        assert signature(resolve(module, name)) == wanted, name


def test_named_tuples_are_tuples_with_fields():
    from adaptdl.goodput import GradParams, PerfParams
    assert issubclass(PerfParams, tuple) and issubclass(GradParams, tuple)
    assert PerfParams(*range(7)).alpha_r == 4 and GradParams(1, 2).var == 2


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_docstring(module):
    loaded = importlib.import_module(module)
    assert inspect.getdoc(loaded)
    for name in loaded.__all__:
        thing = getattr(loaded, name)
        if not (inspect.isclass(thing) or inspect.isfunction(thing)):
            continue
        assert inspect.getdoc(thing), f"{module}.{name}"
        if inspect.isclass(thing) and not issubclass(thing, tuple):
            for method, function in inspect.getmembers(thing, inspect.isfunction):
                if not method.startswith("_"):
                    assert inspect.getdoc(function), f"{module}.{name}.{method}"


def names_in(tree):
    """Functions, classes with their methods, and variables of a stub, with argument names."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            args = node.args
            found[node.name] = [a.arg for a in [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg] if a]
        elif isinstance(node, ast.ClassDef):
            found[node.name] = None
            for name, args in names_in(node).items():
                found[f"{node.name}.{name}"] = args
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = None
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update({alias.asname: None for alias in node.names if alias.asname})
    return found


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_stub(module):
    loaded = importlib.import_module(module)
    stub = pathlib.Path(loaded.__file__).with_suffix(".pyi")
    found = names_in(ast.parse(stub.read_text()))
    for name in loaded.__all__:
        assert name in found, f"{module}.{name} is not in {stub.name}"
    for name, args in found.items():
        thing = resolve(module, name) if "." not in name or args is not None else None
        if args is not None and inspect.isfunction(thing):
            assert args == list(inspect.signature(thing).parameters), name
    assert (pathlib.Path(adaptdl.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("module", MODULES)
def test_help_reads_well(module):
    text = pydoc.plain(pydoc.render_doc(importlib.import_module(module)))
    for name in importlib.import_module(module).__all__:
        assert name in text


def test_internal_functions_are_documented_too():
    from adaptdl import _core
    for name in dir(_core):
        thing = getattr(_core, name)
        if callable(thing) and not name.startswith("__"):
            assert inspect.getdoc(thing), name


if __name__ == "__main__":
    harness.main(__file__)
