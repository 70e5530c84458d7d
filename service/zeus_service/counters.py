"""Counters of requests and of use cases, which `api.monitoring` exposes at `/metrics`.

prometheus-client reads PROMETHEUS_MULTIPROC_DIR when it is imported: the process that starts the
workers sets the variable before it imports this module.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram

REGISTRY = CollectorRegistry()

requests = Counter(
    "zeus_bso_http_requests", "Requests answered.", ("method", "route", "status"), registry=REGISTRY
)
durations = Histogram(
    "zeus_bso_http_request_duration_seconds",
    "Time to answer a request.",
    ("method", "route"),
    registry=REGISTRY,
)
trials_ended = Counter(
    "zeus_bso_trials_ended",
    "Trials that ended, by outcome; a trial that was revived and ended again counts again.",
    ("outcome",),
    registry=REGISTRY,
)
exhausted_starts = Counter(
    "zeus_bso_exhausted_starts",
    "Starts that were refused because every batch size of the job has failed.",
    registry=REGISTRY,
)
energy_j = Counter(
    "zeus_bso_energy_joules", "Energy reported by trials, in joules.", registry=REGISTRY
)
tokens_refused = Counter(
    "zeus_bso_tokens_refused",
    "Unknown tokens received, by the API or the sign-in page.",
    ("where",),
    registry=REGISTRY,
)
for _where in ("api", "sign_in"):  # else the first refusal would be the first value, not a rise
    tokens_refused.labels(_where)
