//! Redis, where it is installed: a server of our own, on a Unix socket in a temporary directory, that saves nothing.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::{Loaded, Setting};

const KEYS_AT_ONCE: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(10);
const SCRIPT: &str = "local sum = 0 for i = 1, #KEYS do sum = sum + tonumber(redis.call('GET', KEYS[i])) end return sum";

/// A server with the objects of a setting, each an integer as text; ended with this.
pub(super) struct Redis {
    server: Child,
    requests: BufWriter<UnixStream>,
    replies: BufReader<UnixStream>,
    _directory: TempDir,
}

impl Redis {
    /// The server; `None` where there is none to start.
    pub(super) fn load(setting: &Setting) -> Result<Option<Self>> {
        let directory = setting.place.temporary()?;
        let socket = directory.path().join("socket");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(&socket).arg("--dir").arg(directory.path());
        let Ok(server) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
            eprintln!("redis is left out: there is no redis-server on this machine");
            return Ok(None);
        };
        // From here on the server ends with its owner, whatever happens.
        let mut server = Kept(Some(server));
        let stream = connect(&socket)?;
        let replies = BufReader::new(stream.try_clone()?);
        let child = server.0.take().context("it was just kept")?;
        let mut redis = Self { server: child, requests: BufWriter::new(stream), replies, _directory: directory };
        for part in setting.all().zip(0..setting.keys).collect::<Vec<_>>().chunks(KEYS_AT_ONCE) {
            for (key, index) in part {
                redis.send(&["SET", &key.to_string(), &index.to_string()])?;
            }
            redis.requests.flush()?;
            for _ in part {
                redis.reply()?;
            }
        }
        Ok(Some(redis))
    }

    fn send(&mut self, words: &[&str]) -> Result<()> {
        write!(self.requests, "*{}\r\n", words.len())?;
        for word in words {
            write!(self.requests, "${}\r\n{word}\r\n", word.len())?;
        }
        Ok(())
    }

    /// A reply of one line, without its first character.
    fn reply(&mut self) -> Result<String> {
        let mut line = String::new();
        self.replies.read_line(&mut line)?;
        match line.trim_end().split_at_checked(1) {
            Some(("+" | ":", rest)) => Ok(rest.to_owned()),
            _ => bail!("redis answered {line:?}"),
        }
    }
}

/// A child that is ended unless it is taken.
struct Kept(Option<Child>);

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            end(child);
        }
    }
}

fn end(child: &mut Child) {
    // It may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

fn connect(socket: &Path) -> Result<UnixStream> {
    let begun = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error) if begun.elapsed() > PATIENCE => return Err(error).context("redis-server does not answer"),
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

impl Loaded for Redis {
    fn name(&self) -> &'static str {
        "redis lua"
    }

    fn sum(&mut self, _: f64, listed: &[u64]) -> Result<i128> {
        let mut sum = 0;
        for part in listed.chunks(KEYS_AT_ONCE) {
            let names: Vec<String> = part.iter().map(u64::to_string).collect();
            let count = names.len().to_string();
            let words: Vec<&str> = ["EVAL", SCRIPT, &count].into_iter().chain(names.iter().map(String::as_str)).collect();
            self.send(&words)?;
            self.requests.flush()?;
            sum += self.reply()?.parse::<i128>()?;
        }
        Ok(sum)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        end(&mut self.server);
    }
}
