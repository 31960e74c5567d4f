//! Coverage: which parts of the engine its tests run, by the compiler's own instrumentation.
//!
//! Tests of the engine and of the simulator are built with counters; each process writes what it counted, and LLVM's tools, of the
//! version that the compiler was built with, put it together. What runs only in models, in schedules or in another process that is
//! killed is not counted: the figures say what is certainly run, not what is proven.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TARGET: &str = "target/coverage";

pub(crate) fn run() -> bool {
    match report() {
        Ok(table) => {
            println!("{table}");
            true
        }
        Err(wrong) => {
            eprintln!("coverage: {wrong}");
            false
        }
    }
}

fn report() -> Result<String, String> {
    let (profdata, cov) = (tool("llvm-profdata")?, tool("llvm-cov")?);
    let profiles = PathBuf::from(TARGET).join("profiles");
    let _ = std::fs::remove_dir_all(&profiles);
    let binaries = binaries(&cargo(&profiles, &["--no-run", "--message-format=json"])?);
    if binaries.is_empty() {
        return Err("cargo named no tests".into());
    }
    cargo(&profiles, &["--no-fail-fast"])?;
    let merged = profiles.join("all.profdata");
    output(Command::new(profdata).args(["merge", "-sparse", "-o"]).arg(&merged).arg(&profiles))?;
    let mut table = Command::new(cov);
    table.args([
        "report",
        "--summary-only",
        "--ignore-filename-regex",
        "(^|/)(tests?|loom_models|\\.cargo|rustc|esker-sim)/|[a-z_]*tests\\.rs",
    ]);
    table.arg(format!("--instr-profile={}", merged.display()));
    binaries.iter().for_each(|binary| _ = table.arg("--object").arg(binary));
    Ok(String::from_utf8_lossy(&output(&mut table)?.stdout).into_owned())
}

/// Runs `cargo test` with counters; what it printed.
fn cargo(profiles: &Path, more: &[&str]) -> Result<String, String> {
    let root = env::current_dir().map_err(|error| error.to_string())?;
    let mut test = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    test.args(["test", "-p", "esker", "-p", "esker-sim", "--lib", "--tests", "--target-dir", TARGET]).args(more);
    test.env("RUSTFLAGS", "-Cinstrument-coverage");
    // Some for each process, so that two that end together share none; those that are killed leave nothing.
    test.env("LLVM_PROFILE_FILE", root.join(profiles).join("%p-%4m.profraw"));
    Ok(String::from_utf8_lossy(&output(&mut test)?.stdout).into_owned())
}

fn output(command: &mut Command) -> Result<Output, String> {
    command.stderr(std::process::Stdio::inherit());
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() { Ok(output) } else { Err(format!("{command:?}: {}", output.status)) }
}

/// The test programs that cargo built, from its messages.
fn binaries(messages: &str) -> Vec<String> {
    let path = |line: &str| line.split("\"executable\":\"").nth(1)?.split('"').next().map(str::to_owned);
    messages.lines().filter_map(path).collect()
}

/// The compiler's own tool (rustup's component `llvm-tools`), or the system's of the same version of LLVM.
fn tool(name: &str) -> Result<PathBuf, String> {
    let rustc = |arguments: &[&str]| {
        let said = Command::new("rustc").args(arguments).output().map_err(|error| error.to_string())?;
        Ok::<_, String>(String::from_utf8_lossy(&said.stdout).into_owned())
    };
    let version = rustc(&["-vV"])?;
    let of = |what: &str| version.lines().find_map(|line| line.strip_prefix(what)).unwrap_or_default().trim().to_owned();
    let own = Path::new(rustc(&["--print", "sysroot"])?.trim()).join("lib/rustlib").join(of("host:")).join("bin").join(name);
    let llvm = of("LLVM version:");
    let systems = format!("{name}-{}", llvm.split('.').next().unwrap_or_default());
    [own, systems.clone().into()]
        .into_iter()
        .find(|tool| Command::new(tool).arg("--version").output().is_ok())
        .ok_or_else(|| format!("{systems} is needed: rustup component add llvm-tools, or the system's llvm of that version"))
}
