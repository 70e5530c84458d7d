"""The wire, version 1, against the real service."""

from __future__ import annotations

import time

from service.api.wires import Api, problem, report
from service.jobs import START, let_leases_expire, spec_json
from service_process import ServiceProcess
from zeus_service.bandit.registry import DEFAULT_POLICY


def outcomes(api: Api, job: str) -> list[str | None]:
    """The outcomes of a job's trials, by number; None while one runs."""
    return [trial["outcome"] for trial in api("GET", f"/jobs/{job}/trials").json()["trials"]]


def test_a_job_is_registered_once_and_then_confirmed(api: Api) -> None:
    given = spec_json(job_id="registered-twice")
    first, second = api("POST", "/jobs", given), api("POST", "/jobs", given)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["spec"] == second.json()["spec"]
    assert first.json()["spec"]["policy"] == DEFAULT_POLICY


def test_a_job_known_with_another_configuration_names_what_differs(api: Api, job: str) -> None:
    other = spec_json(job_id=job, eta_knob=0.25, max_epochs=11)
    body = problem(api("POST", "/jobs", other), 409, "job_conflict")
    assert body["differences"] == {
        "eta_knob": {"known": 0.5, "given": 0.25},
        "max_epochs": {"known": 10, "given": 11},
    }
    assert "eta_knob 0.5, not 0.25" in body["detail"]


OTHER = {"hardware": {**START["hardware"], "device_model": "Other GPU", "max_power_w": 300.0}}


def test_concurrent_runs_on_two_kinds_of_hardware_are_compared_on_each_alone(
    api: Api, job: str
) -> None:
    path = f"/jobs/{job}/trials"
    for number, body in enumerate((START, OTHER) * 2, 1):
        start = api("POST", path, body).json()
        costs_before = [None, None, 1500.0, 3500.0][number - 1]
        assert (start["trial_number"], start["cost_bound"]) == (number, costs_before)
        if number < 3:
            assert api("POST", f"{path}/{number}/reports", report(metric=0.9)).json()["outcome"]
    # 500 J and 10 s, at 100 W and at 300 W
    for number, cost, bound in ((3, 750.0, 1500.0), (4, 1750.0, 3500.0)):
        answer = api("POST", f"{path}/{number}/reports", report()).json()
        assert (answer["cost"], answer["cost_bound"]) == (cost, bound)
        assert answer["decision"] == "continue"
        assert api("POST", f"{path}/{number}/reports", report(2, metric=0.9)).json()["outcome"]
    shown = api("GET", f"/jobs/{job}").json()
    assert [each["device_model"] for each in shown["hardware"]] == ["Fake GPU", "Other GPU"]
    assert [each["cost_bound"] for each in shown["hardware"]] == [1500.0, 3500.0]
    for each in shown["hardware"]:
        assert sum(arm["pulls"] for arm in each["arms"]) == 2
        assert each["best_batch_size"] in (16, 32)
    assert shown["best_batch_size"] == shown["hardware"][-1]["best_batch_size"]


def test_a_job_with_batch_sizes_per_device_keeps_their_number_once_it_may_learn(api: Api) -> None:
    api("POST", "/jobs", spec_json(job_id="per-device", batch_size_scope="per_device"))
    path = "/jobs/per-device/trials"
    more = {"hardware": {**START["hardware"], "num_devices": 2}}
    assert api("POST", path, more).status_code == 201  # it may have been the wrong number
    api("PATCH", f"{path}/1", {"outcome": "errored"})
    assert api("POST", path, START).status_code == 201
    assert api("POST", path, OTHER).status_code == 201
    body = problem(api("POST", path, more), 409, "job_conflict")
    assert body["differences"] == {"num_devices": {"known": 1, "given": 2}}
    assert "Batch sizes are per device" in body["detail"]


def test_a_start_gets_a_batch_size_that_its_devices_can_divide(api: Api) -> None:
    given = spec_json(job_id="divided", batch_sizes=[10, 12, 16], default_batch_size=10)
    api("POST", "/jobs", given)
    start = api("POST", "/jobs/divided/trials", {**START, "multiple_of": 6}).json()
    assert start["batch_size"] == 12
    for more in ({"multiple_of": 7}, {"multiple_of": 6, "control": True}):
        answer = api("POST", "/jobs/divided/trials", {**START, **more})
        assert "is divisible by" in problem(answer, 409, "job_conflict")["detail"]


def test_a_start_says_what_to_train_with_and_why_and_its_trial_has_its_hardware(
    api: Api, job: str
) -> None:
    start = api("POST", f"/jobs/{job}/trials", START).json()
    assert (start["trial_number"], start["batch_size"], start["why"]) == (1, 32, "explore")
    assert start["cost_bound"] is None
    assert start["lease_s"] == 900.0
    expected = {**START["hardware"], "estimated": False}
    assert api("GET", f"/jobs/{job}/trials").json()["trials"][0]["hardware"] == expected
    (shown,) = api("GET", f"/jobs/{job}").json()["hardware"]
    assert expected.items() <= shown.items()


def test_the_same_key_starts_one_trial(api: Api, job: str) -> None:
    headers = {"Idempotency-Key": f"key-{job}"}
    path = f"/jobs/{job}/trials"
    first = api("POST", path, START, headers=headers)
    other = {"hardware": {**START["hardware"], "num_devices": 2}}
    second, third = (api("POST", path, body, headers=headers) for body in (START, other))
    assert (first.status_code, second.status_code, third.status_code) == (201, 200, 200)
    assert first.json() == second.json() == third.json()
    assert api("POST", path, START).json()["trial_number"] == 2


def test_a_key_of_another_job_is_refused(api: Api, job: str) -> None:
    api("POST", "/jobs", spec_json(job_id=f"{job}-other"))
    headers = {"Idempotency-Key": f"key-{job}"}
    api("POST", f"/jobs/{job}/trials", START, headers=headers)
    response = api("POST", f"/jobs/{job}-other/trials", START, headers=headers)
    problem(response, 409, "key_conflict")


def test_the_same_report_gets_the_same_answer_also_after_the_end(api: Api, trial: str) -> None:
    first = api("POST", f"{trial}/reports", report()).json()
    assert first["decision"] == "continue"
    assert first["cost"] == 0.5 * 500.0 + 0.5 * 100.0 * 10.0
    last = api("POST", f"{trial}/reports", report(2, metric=0.95)).json()
    assert (last["decision"], last["outcome"]) == ("stop", "converged")
    assert api("POST", f"{trial}/reports", report()).json() == first
    assert api("POST", f"{trial}/reports", report(2, metric=0.95)).json() == last


def test_a_report_with_a_used_or_an_earlier_sequence_number_is_refused(
    api: Api, trial: str
) -> None:
    api("POST", f"{trial}/reports", report(5))
    response = api("POST", f"{trial}/reports", report(5, metric=0.6))
    assert problem(response, 409, "report_conflict")["known"]["metric"] == 0.5
    problem(api("POST", f"{trial}/reports", report(4)), 409, "report_conflict")


def test_a_new_report_for_a_finished_trial_gets_its_outcome(api: Api, trial: str) -> None:
    api("POST", f"{trial}/reports", report(metric=0.9))
    response = api("POST", f"{trial}/reports", report(2))
    assert problem(response, 409, "trial_finished")["outcome"] == "converged"


def test_the_same_end_again_changes_nothing(api: Api, trial: str) -> None:
    end = {"outcome": "errored", "reason": "ValueError"}
    first = api("PATCH", trial, end)
    assert first.json()["outcome"] == "errored"
    assert api("PATCH", trial, end).json() == first.json()
    api("PATCH", trial, {"outcome": "withdrawn"})
    problem(api("PATCH", trial, {"outcome": "diverged"}), 409, "trial_finished")


def test_an_end_records_when_and_at_what_cost(api: Api, job: str, trial: str) -> None:
    api("POST", f"{trial}/reports", report())
    before = time.time()
    ended = api("PATCH", trial, {"outcome": "diverged", "reason": "NaN"}).json()
    assert (ended["cost"], ended["reason"]) == (750.0, "NaN")
    assert before <= ended["ended_at"] <= time.time()
    assert api("GET", f"/jobs/{job}").json()["hardware"][0]["arms"][2]["mean"] == 750.0


def test_a_trial_whose_lease_ran_out_is_lost_at_the_next_start_and_revived_by_a_report(
    api: Api, any_service: ServiceProcess
) -> None:
    api("POST", "/jobs", spec_json(job_id="lease"))
    path = "/jobs/lease/trials"
    assert api("POST", path, START).json()["why"] == "explore"
    assert api("POST", path, START).json()["why"] == "concurrent"
    api("PATCH", f"{path}/2", {"outcome": "withdrawn"})
    assert api("POST", f"{path}/1/heartbeat", {}).json() == {"lease_s": 900.0}
    let_leases_expire(any_service.database_url)
    start = api("POST", path, START).json()
    assert (start["batch_size"], start["why"]) == (32, "explore")
    assert outcomes(api, "lease") == ["lost", "withdrawn", None]
    problem(api("POST", f"{path}/1/heartbeat", {}), 409, "trial_finished")
    last = api("POST", f"{path}/1/reports", report(metric=0.95)).json()
    assert (last["decision"], last["outcome"]) == ("stop", "converged")
    assert outcomes(api, "lease") == ["converged", "withdrawn", None]
    assert api("POST", f"{path}/1/reports", report(metric=0.95)).json() == last


def test_a_report_and_a_heartbeat_extend_the_lease(api: Api, job: str, trial: str) -> None:
    def ends() -> float:
        return float(api("GET", f"/jobs/{job}/trials").json()["trials"][0]["lease_expires_at"])

    leases = [ends()]
    api("POST", f"{trial}/reports", report())
    leases.append(ends())
    assert api("POST", f"{trial}/heartbeat", {}).json() == {"lease_s": 900.0}
    leases.append(ends())
    assert leases[0] < leases[1] < leases[2] <= time.time() + 900


def test_what_names_no_job_or_trial_is_not_found(api: Api, job: str) -> None:
    end = {"outcome": "errored"}
    for path in ("/jobs/nowhere", f"/jobs/{job}"):
        for method, rest, body in (
            ("POST", "/trials/1/reports", report()),
            ("POST", "/trials/1/heartbeat", {}),
            ("PATCH", "/trials/1", end),
        ):
            problem(api(method, f"{path}{rest}", body), 404, "not_found")
    for method, rest, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/trials", START),
        ("GET", "/trials", None),
    ):
        problem(api(method, f"/jobs/nowhere{rest}", body), 404, "not_found")


def test_a_job_shows_what_is_believed(api: Api, job: str, trial: str) -> None:
    api("POST", f"{trial}/reports", report(metric=0.9))
    shown = api("GET", f"/jobs/{job}").json()
    assert shown["best_batch_size"] == 32
    assert shown["state"] == "learning"
    (here,) = shown["hardware"]
    assert here["cost_bound"] == 2 * 750.0
    arm = next(arm for arm in here["arms"] if arm["batch_size"] == 32)
    assert arm == {"batch_size": 32, "pulls": 1, "mean": 750.0, "spread": None, "status": "alive"}


def test_a_job_whose_batch_sizes_have_all_failed_says_so(api: Api, job: str) -> None:
    path = f"/jobs/{job}/trials"
    for _ in range(2):
        number = api("POST", path, START).json()["trial_number"]
        api("PATCH", f"{path}/{number}", {"outcome": "not_converged"})
    body = problem(api("POST", path, START), 409, "no_batch_size_left")
    assert (
        "left to try: 2 missed the target, 3 were not tried. Use another job_id" in body["detail"]
    )
    assert api("GET", f"/jobs/{job}").json()["next_trial"] == {
        "batch_size": None,
        "reason": body["detail"],
    }


def test_a_job_with_running_trials_is_deleted_only_by_force(api: Api, job: str, trial: str) -> None:
    api("POST", f"{trial}/reports", report())
    problem(api("DELETE", f"/jobs/{job}"), 409, "job_busy")
    assert api("DELETE", f"/jobs/{job}?force=true").status_code == 204
    problem(api("GET", f"/jobs/{job}"), 404, "not_found")
    problem(api("GET", f"{trial}/reports"), 405, "method_not_allowed")
    problem(api("POST", f"{trial}/reports", report()), 404, "not_found")


def test_jobs_and_trials_are_listed_in_pages(api: Api, job: str) -> None:
    for _ in range(3):
        api("POST", f"/jobs/{job}/trials", START)
    page = api("GET", f"/jobs/{job}/trials?after=1&limit=1").json()
    assert [trial["trial_number"] for trial in page["trials"]] == [2]
    api("POST", "/jobs", spec_json(job_id=f"{job}a"))
    page = api("GET", "/jobs", params={"after": job, "limit": 1}).json()
    assert [job["job_id"] for job in page["jobs"]] == [f"{job}a"]
