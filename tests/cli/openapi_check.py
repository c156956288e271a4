"""Holds docs/openapi.yaml against a running adaptdl-sched: every operation is called, every documented
answer is provoked, and status, content type, headers and JSON shape are compared with the document.
Prints test lines (tests/harness.h). Usage: openapi_check.py BIN-DIRECTORY"""
import io, json, os, re, signal, subprocess, sys, tarfile, tempfile, threading, time, urllib.parse

import jsonschema
import requests
import yaml

BIN = sys.argv[1]
SPEC = yaml.safe_load(open("docs/openapi.yaml"))
# Not provoked here: overload and failing disks are tests/unit/test_httpd_hostile.c's and test_core.c's.
UNPROVOKED = {"429", "500", "503", "507"}
failed = 0


def report(name, problems):
    global failed
    if problems:
        failed += 1
        print(f"not ok - {name}: {'; '.join(str(p) for p in problems)[:600]}", flush=True)
    else:
        print(f"ok - {name}", flush=True)


def resolve(node):
    while isinstance(node, dict) and "$ref" in node:
        target = SPEC
        for part in node["$ref"].lstrip("#/").split("/"):
            target = target[part]
        node = target
    return node


def validator(schema):
    # References are looked up in the whole document.
    return jsonschema.Draft202012Validator({**schema, "components": SPEC["components"]})


class Daemon:
    def __init__(self, state, *flags):
        read, write = os.pipe()
        self.log = open(f"{state}/daemon.log", "ab")
        self.process = subprocess.Popen(
            [f"{BIN}/adaptdl-sched", "--state", state, "--nodes", "2", "--slots", "2", "--listen", "127.0.0.1:0",
             "--ready-fd", str(write), *flags], pass_fds=[write], stdout=self.log, stderr=self.log)
        os.close(write)
        with os.fdopen(read) as ready:
            self.ready = ready.readline()
        log = open(f"{state}/daemon.log").read()
        found = re.findall(r"(https?://[^/]*:\d+)/", log)
        if not self.ready or not found:
            sys.exit(f"not ok - openapi: the daemon did not start: {log[-500:]}")
        self.url, self.token = found[-1], open(f"{state}/token").read().strip()

    def stop(self):
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        log = open(self.log.name, errors="replace").read()
        if status != 0 or "Sanitizer" in log:
            report("the_daemon_ends_well", [f"exit status {status}: {log[-2000:]}"])


def job(name, script):
    return {"apiVersion": "adaptdl.petuum.com/v1", "kind": "AdaptDLJob", "metadata": {"name": name},
            "spec": {"template": {"spec": {"containers": [{"name": "main", "command": ["sh", "-c", script]}]}}}}


def archive(spec):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, text in (("job.json", json.dumps(spec)), ("image/root/hello.sh", "echo hello")):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return data.getvalue()


class Checker:
    def __init__(self, daemon):
        self.daemon, self.seen, self.problems = daemon, {}, []
        self.operations = {}
        for path, item in SPEC["paths"].items():
            for method, operation in item.items():
                if method in ("get", "put", "post", "delete"):
                    self.operations[operation["operationId"]] = (path, method, operation)

    def call(self, operation_id, wanted, parts={}, headers={}, token=True, problems=None, **kwargs):
        path, method, operation = self.operations[operation_id]
        for name, value in parts.items():
            path = path.replace("{%s}" % name, str(value))
        headers = dict(headers)
        if token:
            headers["Authorization"] = f"Bearer {self.daemon.token if token is True else token}"
        answer = requests.request(method.upper(), self.daemon.url + path, headers=headers, timeout=60, **kwargs)
        problems = [] if problems is None else problems
        what = f"{operation_id} {wanted}"
        if answer.status_code != wanted:
            problems.append(f"{what}: answered {answer.status_code} {answer.text[:200] if not kwargs.get('stream') else ''}")
        problems += [f"{what}: {p}" for p in self.compare(operation, answer, kwargs.get("stream"))]
        self.seen.setdefault(operation_id, set()).add(str(answer.status_code))
        self.problems += problems
        return answer

    def compare(self, operation, answer, stream):
        documented = operation["responses"].get(str(answer.status_code))
        if documented is None:
            return [f"status {answer.status_code} is not documented"]
        documented = resolve(documented)
        problems = [f"header {name} is missing" for name, header in documented.get("headers", {}).items()
                    if header.get("required") and name not in answer.headers]
        if answer.headers.get("X-Content-Type-Options") != "nosniff":
            problems.append("no X-Content-Type-Options")
        kinds = documented.get("content")
        if not kinds:
            return problems + (["a body that is not documented"] if answer.content else [])
        kind = answer.headers.get("Content-Type", "").split(";")[0]
        if kind not in kinds:
            return problems + [f"content type {kind!r} is not documented"]
        if kind == "application/json" and not stream:
            schema = kinds[kind]["schema"]
            errors = sorted(validator(schema).iter_errors(answer.json()), key=str)
            problems += [f"{'/'.join(map(str, e.path))}: {e.message[:200]}" for e in errors[:3]]
        return problems

    def finish(self):
        report("answers_have_their_documented_shape", self.problems)
        report("every_operation_is_called", [f"{i} is not" for i in self.operations if i not in self.seen])
        report("every_documented_answer_is_seen",
               [f"{i}: {code}" for i, (_, _, operation) in self.operations.items()
                for code in operation["responses"] if code not in self.seen.get(i, ()) and code not in UNPROVOKED])
        print(f"info - {len(self.operations)} operations, "
              f"{sum(len(codes) for codes in self.seen.values())} kinds of answers", flush=True)


def wait_phase(c, name, phases, seconds=60):
    for _ in range(int(seconds * 10)):
        found = c.call("getJob", 200, {"namespace": "default", "name": name}).json()
        if found["phase"] in phases:
            return found
        time.sleep(0.1)
    raise SystemExit(f"not ok - openapi: job {name} is {found['phase']}, not {phases}: {found['message']}")


HINTS = {"initBatchSize": 32, "localBszBounds": [8, 64], "globalBatchSize": 64, "maxBatchSize": 512,
         "maxProfiledReplicas": 1, "gradientAccumulation": False, "loneReplicaGrows": True,
         "gradParams": {"norm": 0.5, "var": 1.5},
         "perfParams": {"alpha_c": 0.1, "beta_c": 0.01, "alpha_n": 0.1, "beta_n": 0.01, "alpha_r": 0.1,
                        "beta_r": 0.01, "gamma": 1.5}, "progress": 10.5, "epoch": 1, "targetEpochs": 10,
         "iterationsPerEpoch": 100.0, "elapsed": 12.0, "unknown": {"is": "dropped"}}


def submit_and_look(c):
    c.call("submitJob", 201, json=job("hello", "echo one; echo two; echo hello world > /adaptdl/share/foo.txt; "
                                               "ln -s /etc/passwd /adaptdl/share/out"))
    c.call("submitJob", 201, headers={"Content-Type": "application/yaml"},
           data=yaml.safe_dump(job("runner", "env | grep ADAPTDL; sleep 600")))
    c.call("submitJob", 201, headers={"Content-Type": "application/x-tar"}, data=archive(job("packed", "sh /root/hello.sh")))
    c.call("submitJob", 200, params={"dryRun": "1"}, json=job("dry", "true"))
    c.call("submitJob", 400, json={"kind": "Pod"})
    c.call("submitJob", 400, headers={"Content-Type": "application/yaml"}, data="a: [")
    c.call("submitJob", 409, json=job("runner", "true"))
    c.call("submitJob", 415, headers={"Content-Type": "text/plain"}, data="x")
    c.call("submitJob", 413, headers={"Content-Type": "application/yaml"}, data=b"#" * (2 << 20))
    c.call("listJobs", 200)
    c.call("listJobs", 200, params={"namespace": "default", "phase": "Running"})
    c.call("listJobs", 400, params={"phase": "Sleeping"})
    tag = c.call("listJobs", 200, params={"namespace": "nobody", "phase": "Pending,Running"}).headers["ETag"]
    c.call("listJobs", 304, params={"namespace": "nobody"}, headers={"If-None-Match": tag})
    c.call("listJobs", 200, params={"fields": "name,phase", "limit": 1})
    c.call("listJobs", 410, params={"continue": "1-1"})
    c.call("deleteJobs", 400)
    c.call("deleteJobs", 401, params={"namespace": "nobody"}, token=False)
    c.call("deleteJobs", 202, params={"namespace": "nobody"})
    done = wait_phase(c, "hello", ("Succeeded", "Failed"))
    wait_phase(c, "runner", ("Running",))
    report("a_job_runs", [] if done["phase"] == "Succeeded" else [done["message"]])


def files_and_logs(c):
    hello = {"namespace": "default", "name": "hello"}
    none = {"namespace": "default", "name": "none"}
    problems = []
    text = c.call("getLogs", 200, hello).text
    follow = c.call("getLogs", 200, hello, params={"follow": "1"}).text
    if text != "one\ntwo\n" or follow != text:
        problems.append(f"logs: {text!r}, followed: {follow!r}")
    if c.call("getLogs", 200, hello, params={"tail": "1"}).text != "two\n":
        problems.append("tail=1")
    foo = c.call("getFile", 200, hello, params={"path": "/adaptdl/share/foo.txt"}).text
    if foo != "hello world\n":
        problems.append(f"foo.txt: {foo!r}")
    listing = c.call("getFile", 200, hello, params={"path": "/adaptdl/share"})
    if listing.headers.get("X-Adaptdl-Directory") != "1":
        problems.append("no X-Adaptdl-Directory")
    report("logs_and_files_of_a_job", problems)
    c.call("getLogs", 400, hello, params={"tail": "x"})
    c.call("getLogs", 404, hello, params={"group": "77"})
    c.call("getFile", 400, hello, params={"path": "/etc/passwd"})
    c.call("getFile", 403, hello, params={"path": "/adaptdl/share/out"})
    c.call("getFile", 404, hello, params={"path": "/adaptdl/share/none"})
    c.call("getHistory", 200, hello)
    c.call("getHistory", 404, none)
    c.call("getJob", 404, none)
    c.call("deleteJob", 404, none)


def asks(c):
    """What users ask of jobs that they keep."""
    asked, none = ({"namespace": "default", "name": name} for name in ("asked", "none"))
    c.call("submitJob", 201, json=job("asked", "sleep 600"))
    wait_phase(c, "asked", ("Running",))
    c.call("resumeJob", 409, asked)
    c.call("suspendJob", 202, asked)
    wait_phase(c, "asked", ("Pending",))
    c.call("resumeJob", 202, asked)
    wait_phase(c, "asked", ("Running",))
    c.call("scaleJob", 202, asked, params={"replicas": 2})
    c.call("scaleJob", 202, asked, params={"auto": 1})
    c.call("scaleJob", 400, asked, params={"replicas": 0})
    c.call("scaleJob", 400, asked)
    c.call("cancelJob", 202, asked)
    found = wait_phase(c, "asked", ("Failed",))
    c.call("scaleJob", 409, asked, params={"replicas": 2})
    c.call("scaleJob", 404, none, params={"replicas": 2})
    report("a_job_is_suspended_and_cancelled", [] if found["reason"] == "Cancelled" else [found])
    again = c.call("rerunJob", 201, asked).json()["name"]
    c.call("deleteJob", 202, {"namespace": "default", "name": again})
    for operation in ("cancelJob", "suspendJob"):
        c.call(operation, 409, asked)
    for operation in ("cancelJob", "suspendJob", "resumeJob", "rerunJob"):
        c.call(operation, 404, none)


def replicas(c):
    runner = {"namespace": "default", "name": "runner"}
    log = c.call("getLogs", 200, runner).text
    env = dict(line.split("=", 1) for line in log.splitlines() if "=" in line)
    url = env["ADAPTDL_SUPERVISOR_URL"]
    token = urllib.parse.urlparse(url).password
    problems = []
    # As the seeds' client does it: the URL as it is in the environment.
    answer = requests.get(f"{url}/discover/{env['ADAPTDL_JOB_ID']}/{env['ADAPTDL_NUM_RESTARTS']}", timeout=60)
    if answer.status_code != 200 or len(answer.json()) != int(env["ADAPTDL_NUM_REPLICAS"]):
        problems.append(f"discover: {answer.status_code} {answer.text[:100]}")
    answer = requests.put(f"{url}/hints/{env['ADAPTDL_JOB_ID']}", json=HINTS, timeout=60)
    if answer.status_code != 200:
        problems.append(f"hints: {answer.status_code} {answer.text[:100]}")
    if requests.put(f"{url}/hints/default/hello", json=HINTS, timeout=60).status_code != 403:
        problems.append("hints for another job were taken")
    for path in ("/api/v1/jobs", "/metrics", "/"):
        if requests.get(url + path, timeout=60).status_code != 404:
            problems.append(f"{path} is served to replicas")
    report("replicas_speak_as_ever", problems)
    c.call("discover", 200, {**runner, "group": 0})
    c.call("discover", 200, {**runner, "group": 0}, token=token)
    c.call("discover", 400, {**runner, "group": "x"})
    c.call("discover", 403, {"namespace": "default", "name": "hello", "group": 0}, token=token)
    c.call("discover", 404, {"namespace": "default", "name": "none", "group": 0})
    hello = {"namespace": "default", "name": "hello"}
    c.call("getWorld", 200, runner, params={"scheduler": "none"}, token=token)
    c.call("getWorld", 400, runner, params={"after": "x"})
    c.call("getWorld", 403, hello, token=token)
    c.call("getWorld", 404, {"namespace": "default", "name": "none"})
    c.call("getWorld", 409, runner, params={"restarts": 77})
    says = {"restarts": 0, "member": 0, "says": ["able", "entered 0", "what is this"]}
    c.call("putWorld", 200, runner, json=says, token=token)
    c.call("putWorld", 400, runner, json={**says, "says": [7]})
    c.call("putWorld", 400, runner, json={"says": []})
    c.call("putWorld", 403, hello, json=says, token=token)
    c.call("putWorld", 404, {"namespace": "default", "name": "none"}, json=says)
    c.call("putHints", 200, runner, json=HINTS)
    c.call("putHints", 200, runner, json=HINTS, token=token)
    c.call("putHints", 400, runner, json={"initBatchSize": "many"})
    c.call("putHints", 403, {"namespace": "default", "name": "hello"}, json=HINTS, token=token)
    c.call("putHints", 404, {"namespace": "default", "name": "none"}, json=HINTS)
    c.call("putHints", 413, runner, data=b" " * (5 << 20))
    train = c.call("getJob", 200, runner).json()["train"]
    report("hints_show_up", [] if train and train["batchSize"] == 64 else [train])
    use = []
    for _ in range(600):  # the scheduler looks every few seconds
        use = c.call("getJob", 200, runner).json()["use"]
        if use:
            break
        time.sleep(0.1)
    report("use_shows_up", [] if use and use[0]["memoryBytes"] > 0 else [use])
    told = {"restart": 0, "points": [{"name": "loss", "step": 4, "time": 1.6e9, "value": 0.25},
                                     {"name": "loss", "step": 5, "time": 1.7e9, "value": None}]}
    c.call("putReports", 200, runner, json=told)
    c.call("putReports", 200, runner, json=told, token=token)
    c.call("putReports", 400, runner, json={"restart": 0, "points": [{"name": "loss"}]})
    c.call("putReports", 403, {"namespace": "default", "name": "hello"}, json=told, token=token)
    c.call("putReports", 404, {"namespace": "default", "name": "none"}, json=told)
    c.call("putReports", 413, runner, data=b" " * (5 << 20))
    curves = c.call("getMetrics", 200, runner).json()["items"]
    wanted = [{"name": "loss", "steps": [4, 5], "times": [1.6e9, 1.7e9], "values": [0.25, None]}]
    report("metrics_show_up", [] if curves == wanted else [curves])
    c.call("getMetrics", 400, runner, params={"points": "some"})
    c.call("getMetrics", 404, {"namespace": "default", "name": "none"})
    c.call("getJobDecisions", 200, runner)
    c.call("getJobDecisions", 400, runner, params={"limit": "0"})
    c.call("getJobDecisions", 404, {"namespace": "default", "name": "none"})


def cluster(c):
    c.call("drainCluster", 200)
    c.call("undrainNode", 409, {"node": "node-1"})
    c.call("undrainCluster", 200)
    for node in ("drainNode", "undrainNode"):
        c.call(node, 200, {"node": "node-1"})
        c.call(node, 404, {"node": "node-9"})
    c.call("cluster", 200)
    c.call("listNodes", 200)
    c.call("metrics", 200)
    c.call("healthz", 200, token=False)
    c.call("readyz", 200, token=False)
    c.call("getDecisions", 400, params={"limit": "x"})
    problems = []
    for _ in range(150):  # rounds come every second here
        items = c.call("getDecisions", 200).json()["items"]
        if items:
            break
        time.sleep(0.1)
    else:
        problems.append("no decision was made")
    c.call("getSnapshot", 200)
    last = c.call("getEvents", 200).json()["last"]
    c.call("getEvents", 200, params={"since": str(last - 1), "job": "default/runner"})
    c.call("getEvents", 400, params={"job": "nonsense"})
    stream = c.call("getEvents", 200, headers={"Accept": "text/event-stream", "Last-Event-ID": "1"}, stream=True)
    lines = [line for line, _ in zip((l for l in stream.iter_lines(decode_unicode=True) if l.startswith("id: ")), range(3))]
    if lines != ["id: 2", "id: 3", "id: 4"]:
        problems.append(f"stream: {lines}")
    stream.close()
    report("decisions_and_events", problems)


def pages(c):
    problems = []
    page = c.call("dashboard", 200, token=False)
    c.call("dashboard", 304, token=False, headers={"If-None-Match": page.headers["ETag"]})
    names = re.findall(r'(?:src|href)="(?:/?dashboard/)?([\w./-]+\.(?:js|css|svg))"', page.text)
    for name in names:
        file = c.call("dashboardFile", 200, {"file": os.path.basename(name)}, token=False)
        c.call("dashboardFile", 304, {"file": os.path.basename(name)}, token=False,
               headers={"If-None-Match": file.headers.get("ETag", "")})
    c.call("dashboardFile", 404, {"file": "none.js"}, token=False)
    if not names:
        problems.append("the page names no file")
    if "default-src 'self'" not in page.headers.get("Content-Security-Policy", ""):
        problems.append("no Content-Security-Policy")
    report("the_dashboard_is_served", problems)


def refusals(c):
    parts = {"namespace": "default", "name": "runner", "group": 0, "node": "node-0"}
    for operation_id, (_, _, operation) in c.operations.items():
        if operation.get("security") != []:
            c.call(operation_id, 401, parts, token=False)
    c.call("cluster", 401, token="wrong")


def routes_are_documented():
    source = open("src/daemon/api.c").read().replace('JOB "', '"/api/v1/jobs/{}/{}').replace("JOB,", '"/api/v1/jobs/{}/{}",')
    served = set(re.findall(r'\{"(GET|PUT|POST|DELETE)",\s*"(/[^"]*)"', source))
    documented = {(method.upper(), re.sub(r"\{\w+\}", "{}", path)) for path, item in SPEC["paths"].items()
                  for method in item if method != "parameters"}
    documented = {(m, "/dashboard/*" if p == "/dashboard/{}" else p) for m, p in documented}
    report("every_route_is_documented", [f"only served: {served - documented}, only documented: {documented - served}"]
           if served != documented else [])


def end(c, state):
    """Those who wait when the server ends are told to ask again; the next server has the same jobs."""
    problems = []
    c.call("submitJob", 201, json=job("late", "sleep 600"))
    wait_phase(c, "late", ("Running",))
    parts = {"namespace": "default", "name": "late", "group": 5}
    world = {"namespace": "default", "name": "late"}
    waiting = [threading.Thread(target=lambda: c.call("discover", 408, parts, problems=problems)),
               threading.Thread(target=lambda: c.call("getWorld", 408, world, params={"after": 9}, problems=problems))]
    for thread in waiting:
        thread.start()
    time.sleep(1)
    c.daemon.stop()
    for thread in waiting:
        thread.join(60)
    report("long_polls_end_with_the_server", problems)
    c.daemon = Daemon(state, "--interval", "1")
    for name in ("late", "runner"):  # nothing is left running
        parts = {"namespace": "default", "name": name}
        if c.call("getJob", 200, parts).json()["phase"] in ("Succeeded", "Failed"):
            c.problems.append(f"{name} ended with the server")
        c.call("deleteJob", 202, parts)
        for _ in range(600):
            if requests.get(f"{c.daemon.url}/api/v1/jobs/default/{name}",
                            headers={"Authorization": f"Bearer {c.daemon.token}"}, timeout=60).status_code == 404:
                break
            time.sleep(0.1)
        else:
            c.problems.append(f"{name} was not removed")


def tls(state):
    cert, key = f"{state}/cert.pem", f"{state}/key.pem"
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                           "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
                           "-keyout", key, "-out", cert], capture_output=True)
    if made.returncode:
        print("skip - tls: no certificate could be made with openssl", flush=True)
        return
    daemon = Daemon(state, "--tls-cert", cert, "--tls-key", key)
    problems = []
    try:
        if not daemon.url.startswith("https:"):
            problems.append(daemon.url)
        answer = requests.get(f"{daemon.url}/api/v1/jobs", headers={"Authorization": f"Bearer {daemon.token}"},
                              verify=cert, timeout=60)
        if answer.status_code != 200:
            problems.append(answer.status_code)
        if requests.get(f"{daemon.url}/api/v1/jobs", auth=("x", "wrong"), verify=cert, timeout=60).status_code != 401:
            problems.append("a wrong token was taken")
        stream = requests.get(f"{daemon.url}/api/v1/events", verify=cert, stream=True, timeout=60, headers={
            "Authorization": f"Bearer {daemon.token}", "Accept": "text/event-stream"})
        if next(stream.iter_lines(decode_unicode=True)) != "retry: 2000":
            problems.append("no stream over TLS")
        stream.close()
        try:
            requests.get(daemon.url.replace("https:", "http:") + "/healthz", timeout=10)
            problems.append("plain HTTP was answered")
        except requests.exceptions.RequestException:
            pass
        try:
            requests.get(daemon.url + "/healthz", timeout=10)
            problems.append("the certificate was not checked")
        except requests.exceptions.SSLError:
            pass
    finally:
        daemon.stop()
    report("tls", problems)


def main():
    with tempfile.TemporaryDirectory(prefix="adl-openapi-") as state:
        daemon = Daemon(state, "--interval", "1")
        c = Checker(daemon)
        try:
            c.call("getSnapshot", 404)  # nothing was decided yet
            submit_and_look(c)
            files_and_logs(c)
            asks(c)
            replicas(c)
            cluster(c)
            pages(c)
            refusals(c)
            routes_are_documented()
            end(c, state)
            c.finish()
        finally:
            c.daemon.stop()
    with tempfile.TemporaryDirectory(prefix="adl-openapi-") as state:
        tls(state)
    sys.exit(1 if failed else 0)


main()
