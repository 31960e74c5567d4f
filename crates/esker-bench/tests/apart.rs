//! Measurements in processes of their own, as somebody runs them.

use std::process::Command;

#[test]
fn figures_come_back_from_other_processes() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.json");
    let mut run = Command::new(env!("CARGO_BIN_EXE_esker-bench"));
    run.args([
        "hybrid",
        "--adds=1000",
        "--reads",
        "100",
        "--percent=10,100",
        "--threads",
        "1,2",
        "--choices",
        "uniform",
        "--engines",
        "esker",
    ]);
    let done = run.arg("--directory").arg(folder.path()).arg("--json").arg(&rows).output().unwrap();
    let told = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{told}{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(told.lines().filter(|line| line.starts_with("esker ")).count(), 8, "{told}");
    let rows: serde_json::Value = serde_json::from_slice(&std::fs::read(rows).unwrap()).unwrap();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 8);
    for row in rows {
        assert!(row["resident_bytes"].as_u64().unwrap() > 0 && row["ops_per_second"]["median"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["latency_ns"]["p50"].as_u64().unwrap() > 0 && row["keys"] == 1000, "{row}");
    }
}
