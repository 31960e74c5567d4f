//! The program, as somebody runs it: measurements in processes of their own, and what machines read of them.

use serde_json::Value;
use std::process::Command;

/// The rows of an experiment, and what it prints.
fn rows_of(arguments: &[&str]) -> (Vec<Value>, String) {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.json");
    let mut run = Command::new(env!("CARGO_BIN_EXE_esker-bench"));
    let done = run.args(arguments).arg("--directory").arg(folder.path()).arg("--json").arg(&rows).output().unwrap();
    let told = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{told}{}", String::from_utf8_lossy(&done.stderr));
    let Value::Array(rows) = serde_json::from_slice(&std::fs::read(rows).unwrap()).unwrap() else { panic!("{told}") };
    (rows, told)
}

fn positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0)
}

#[test]
fn figures_come_back_from_other_processes() {
    let what = "hybrid --adds=1000 --reads 100 --percent=10,100 --threads 1,2 --choices uniform --engines esker";
    let (rows, told) = rows_of(&what.split(' ').collect::<Vec<_>>());
    assert_eq!(told.lines().filter(|line| line.starts_with("esker ")).count(), 8, "{told}");
    assert_eq!(rows.len(), 8);
    for row in rows {
        assert!(positive(&row["resident_bytes"]) && positive(&row["ops_per_second"]["median"]), "{row}");
        assert!(positive(&row["latency_ns"]["p50"]) && row["keys"] == 1000 && positive(&row["memory_fraction"]), "{row}");
    }
}

#[test]
fn rows_have_the_names_that_others_read() {
    let what = "ycsb --keys 2000 --threads 1 --reads 0,50,100 --operation put,rmw --distribution uniform --batch 1,32 \
                --engines esker --seconds 0.2 --runs 2";
    let (rows, told) = rows_of(&what.split_whitespace().collect::<Vec<_>>());
    // For each batch a load, three mixes of puts and two of increments: reads alone are the same.
    assert_eq!(rows.len(), 2 * (1 + 5), "{told}");
    for row in rows {
        for name in ["experiment", "engine", "operation", "distribution"] {
            assert!(row[name].as_str().is_some_and(|text| !text.is_empty()), "{name} of {row}");
        }
        for name in ["threads", "keys", "value_bytes", "batch", "runs"] {
            assert!(positive(&row[name]), "{name} of {row}");
        }
        assert!([0, 50, 100].contains(&row["reads_percent"].as_i64().unwrap()) && row["bytes_per_entry"].is_number(), "{row}");
        let [low, middle, high] = ["min", "median", "max"].map(|name| row["ops_per_second"][name].as_f64().unwrap());
        assert!(0.0 < low && low <= middle && middle <= high, "{row}");
        let times = ["p50", "p99", "p999", "max"].map(|name| row["latency_ns"][name].as_u64().unwrap());
        assert!(times[0] > 0 && times.is_sorted(), "{row}");
    }
}
