"""The cost of a run is added up from the pods that were seen."""

import pytest

from bench.idle import Pod, costs, main, medians, quantity


@pytest.mark.parametrize(
    ("text", "number"), [("250m", 0.25), ("1", 1.0), ("0.5", 0.5), ("768Mi", 768 << 20), ("1Gi", 1 << 30)]
)
def test_quantities_of_kubernetes_are_numbers(text: str, number: float) -> None:
    assert quantity(text) == number


def test_a_run_costs_what_its_pods_request_while_they_hold_it() -> None:
    driver = Pod("driver", 0.25, 768 << 20, since=100.0, until=108.0, cpu_s=3.0, peak=150 << 20)
    executor = Pod("executor", 1.0, 1 << 30, since=104.0, until=106.0, cpu_s=1.5, peak=900 << 20)
    assert costs([driver, executor, executor]) == {
        "pods": {"driver": 1, "executor": 2},
        "pod_s": 12.0,
        "core_s": 6.0,
        "gib_s": 10.0,
        "cpu_s": 6.0,
        "peak_mib": 150,
    }


def test_medians_are_of_the_columns_that_belong_to_a_run() -> None:
    rows = [
        {
            "row": "idle",
            "commit": "a",
            "topics": 3,
            "load": 1.0,
            "wall_s": wall,
            "peak_mib": 100,
            "s3": {"PutObject": 1},
        }
        for wall in (9.0, 5.0, 6.0)
    ]
    assert medians(rows) == {"wall_s": 6.0, "peak_mib": 100}


def test_a_key_of_spark_without_a_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--conf", "spark.executor.instances"])
    assert "KEY=VALUE" in capsys.readouterr().err
