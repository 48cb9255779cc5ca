"""Jobs on Kubernetes: the official client, against an API server that knows ``scale`` alone."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tfs.core.clock import MonotonicClock
from tfs.hosted.jobs.job_runtime import JobSpec, RunningJobs
from tfs.hosted.jobs.kubernetes_jobs import KubernetesJobs
from tfs.testing.patience import PATIENCE_S

PATH = "/apis/apps/v1/namespaces/models/statefulsets/tfs-digits/scale"
SPEC = JobSpec("digits", 2, 1 << 30)


class Api:
    """Scales one StatefulSet; its pods come and go when ``settle`` is called."""

    def __init__(self) -> None:
        self.wanted, self.running = 1, 1
        self.asked: list[str] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer()

            def do_PATCH(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                api.wanted = body["spec"]["replicas"]
                self.answer()

            def answer(self) -> None:
                api.asked.append(f"{self.command} {self.path}")
                form = {
                    "apiVersion": "autoscaling/v1",
                    "kind": "Scale",
                    "spec": {"replicas": api.wanted},
                    "status": {"replicas": api.running},
                }
                text = json.dumps(form).encode()
                self.send_response(200 if self.path == PATH else 404)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *_: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def settle(self) -> None:
        self.running = self.wanted

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.close()


@pytest.fixture
def jobs(api: Api) -> Iterator[RunningJobs]:
    try:
        from kubernetes import client
    except ImportError:
        if os.environ.get("TFS_ENGINES") == "required":
            pytest.fail("needs the extra k8s")
        pytest.skip("needs the extra k8s")
    settings = client.Configuration(host=f"http://127.0.0.1:{api.server.server_port}")
    with client.ApiClient(settings) as connection:
        runtime = KubernetesJobs(client.AppsV1Api(connection), "models")
        made = RunningJobs(runtime, MonotonicClock())
        made.start()
        yield made
        made.close()


def until(holds: Callable[[], bool]) -> None:
    patient = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if holds():
            return
        patient.wait(0.02)
    raise AssertionError


def test_a_job_is_scaled_and_its_pods_have_names(api: Api, jobs: RunningJobs) -> None:
    """To what it should be, with nothing of the API but ``scale``; a pod that comes runs."""
    jobs.keep([SPEC])
    until(lambda: api.wanted == 2)
    until(lambda: "digits" in jobs.seen)
    found = jobs.seen["digits"]
    assert [each.address for each in found] == [
        "tfs-digits-0.tfs-fleet.models.svc:8500",
        "tfs-digits-1.tfs-fleet.models.svc:8500",
    ]
    api.settle()
    until(lambda: not any(each.problem for each in jobs.seen["digits"]))
    assert {each.split()[1] for each in api.asked} == {PATH}


def test_a_job_may_have_no_pod_and_gets_one_again(api: Api, jobs: RunningJobs) -> None:
    """One of Temp without models is still the fleet's: it is looked at, and scaled up."""
    jobs.keep([replace(SPEC, num_replicas=0)])
    until(lambda: api.wanted == 0)
    api.settle()
    until(lambda: jobs.seen.get("digits") == [])
    jobs.keep([replace(SPEC, num_replicas=1)])
    until(lambda: api.wanted == 1)
    api.settle()
    until(lambda: not any(each.problem for each in jobs.seen["digits"]))
    assert list(jobs.seen) == ["digits"]


def test_a_job_that_is_removed_has_no_pods_and_is_forgotten(
    api: Api, jobs: RunningJobs
) -> None:
    """Its StatefulSet stays, for whoever applied it."""
    jobs.keep([SPEC])
    until(lambda: api.wanted == 2)
    api.settle()
    jobs.keep([])
    until(lambda: api.wanted == 0)
    assert list(jobs.seen) == ["digits"]
    api.settle()
    until(lambda: not jobs.seen)


def test_a_job_whose_set_nobody_applied_says_so(api: Api, jobs: RunningJobs) -> None:
    """The status of the fleet shows it; it is looked for again."""
    jobs.keep([JobSpec("absent", 1, 1)])
    until(lambda: "absent" in jobs.seen)
    (found,) = jobs.seen["absent"]
    assert "StatefulSet tfs-absent in models cannot be scaled" in found.problem
