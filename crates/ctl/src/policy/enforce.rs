//! `a2a-gateway policy enforce`: the observed rules of a configuration file become rules in force.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::super::failure::{Failure, OrFail as _};

/// `a2a-gateway policy enforce --config FILE`.
#[derive(clap::Args, Debug)]
pub struct EnforceArguments {
    /// The configuration file; everything else in it stays as it is
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs `a2a-gateway policy enforce`.
pub(super) fn run_enforce(arguments: &EnforceArguments) -> Result<String, Failure> {
    let path = &arguments.config;
    let shown = path.display();
    let text = std::fs::read_to_string(path).or_fail(format!("failed to read {shown}"))?;
    let parsed: Table = text.parse().or_fail(format!("{shown} is no TOML"))?;
    let (wanted, enforced) = enforce_table(&parsed);
    if enforced.is_empty() {
        return Ok(format!("{shown} has no observed rules.\n"));
    }
    let edited = enforce_text(&text);
    if edited.parse::<Table>().ok().as_ref() != Some(&wanted) {
        return Err(Failure::new(format!(
            "{shown} is not changed: its observed rules ({}) are not written as tables of their own. Make them \
             [access], [[cap]] and [[access.require]] by hand",
            enforced.join(", ")
        )));
    }
    replace_file(path, &edited).or_fail(format!("failed to write {shown}"))?;
    Ok(format!(
        "{shown} enforces: {}\nGateways take it when they read it again.\n",
        enforced.join(", ")
    ))
}

/// Returns the configuration in which observed rules are in force, and their names.
fn enforce_table(parsed: &Table) -> (Table, Vec<String>) {
    let (mut wanted, mut enforced) = (parsed.clone(), Vec::new());
    let mut enforce_list = |list: Option<&mut Value>, kind: &str| {
        let list = list.and_then(Value::as_array_mut).into_iter().flatten();
        for (at, rule) in list.filter_map(Value::as_table_mut).enumerate() {
            if rule.get("mode").and_then(Value::as_str) == Some("observe") {
                rule.insert("mode".to_owned(), "enforce".into());
                let name = rule.get("name").and_then(Value::as_str);
                enforced.push(name.map_or(format!("{kind} {}", at + 1), |name| {
                    format!("{kind} {name}")
                }));
            }
        }
    };
    enforce_list(wanted.get_mut("cap"), "cap");
    if let Some(access) = wanted.get_mut("access").and_then(Value::as_table_mut) {
        enforce_list(access.get_mut("require"), "access.require");
        if let Some(Value::Table(observed)) = access.remove("observe") {
            for (name, value) in observed {
                enforced.push(format!("access.{name} = {value}"));
                access.insert(name, value);
            }
        }
    }
    (wanted, enforced)
}

/// Edits the lines: those of `[access.observe]` move to `[access]`, and the modes of lists change. The caller compares
/// the result with what it has to mean.
fn enforce_text(text: &str) -> String {
    const OBSERVED: &str = "[access.observe]";
    let key_of = |line: &str| line.split_once('=').map(|(key, _)| key.trim().to_owned());
    let header_of = |line: &str| {
        let line = line.split('#').next().unwrap_or_default().trim();
        line.starts_with('[').then(|| line.to_owned())
    };
    let mut sections: Vec<(String, Vec<String>)> = vec![(String::new(), Vec::new())];
    for line in text.split_inclusive('\n') {
        if let Some(header) = header_of(line) {
            sections.push((header, Vec::new()));
        }
        if let Some((_, lines)) = sections.last_mut() {
            lines.push(line.to_owned());
        }
    }
    for (_, lines) in sections
        .iter_mut()
        .filter(|(header, _)| matches!(&**header, "[[cap]]" | "[[access.require]]"))
    {
        let is_observed = |line: &&mut String| {
            let value = line.split_once('=').map(|(_, value)| value.trim());
            let value = value.and_then(|value| value.strip_prefix(['"', '\'']));
            key_of(line).as_deref() == Some("mode")
                && value.is_some_and(|value| value.starts_with("observe"))
        };
        for line in lines.iter_mut().filter(is_observed) {
            *line = line.replacen("observe", "enforce", 1);
        }
    }
    let Some(at) = sections.iter().position(|(header, _)| header == OBSERVED) else {
        return sections.into_iter().flat_map(|(_, lines)| lines).collect();
    };
    if let Some(place) = sections.iter().position(|(header, _)| header == "[access]") {
        let (_, moved) = sections.remove(at);
        let place = if place > at { place - 1 } else { place };
        let lines = &mut sections[place].1;
        for line in moved.into_iter().skip(1) {
            let key = key_of(&line).filter(|key| !key.starts_with('#'));
            let same = |one: &String| key.is_some() && key_of(one) == key;
            match lines.iter().position(same) {
                Some(old) => lines[old] = line,
                None if key.is_some() => {
                    if let Some(last) = lines.last_mut().filter(|last| !last.ends_with('\n')) {
                        last.push('\n');
                    }
                    lines.insert(1, line);
                }
                None => {}
            }
        }
    } else if let Some(header) = sections[at].1.first_mut() {
        *header = header.replacen(OBSERVED, "[access]", 1);
    }
    sections.into_iter().flat_map(|(_, lines)| lines).collect()
}

/// Replaces a file at once, with the mode that it has.
fn replace_file(path: &Path, text: &str) -> std::io::Result<()> {
    // Behind a link is the file that is meant.
    let path = path.canonicalize()?;
    let mut next = path.clone().into_os_string();
    next.push(".new");
    let mut file = std::fs::File::create_new(&next)?;
    let written = (|| {
        file.set_permissions(std::fs::metadata(&path)?.permissions())?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&next, &path)
    })();
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&next);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enforce(text: &str) -> Result<(String, String), Failure> {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("gateway.toml");
        std::fs::write(&config, text).unwrap();
        let said = run_enforce(&EnforceArguments {
            config: config.clone(),
        });
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(left.len(), 1);
        let now = std::fs::read_to_string(&config).unwrap();
        match said {
            Ok(said) => Ok((now, said)),
            Err(failure) => {
                assert_eq!(now, text);
                Err(failure)
            }
        }
    }

    #[test]
    fn observed_rules_become_rules_and_the_rest_stays() {
        let text = "# ours\n[access]\nlineage = \"direct\" # for now\n\n[access.observe] # soon\nlineage = \"any\" # wide\n\
                    [[cap]]\nname = \"a\"\nmode = \"observe\" # try\nlimit = 1\n\n[[cap]]\nname = \"b\"\n\n\
                    [[guard]]\nname = \"g\"\nmode = \"observe\"\n";
        let (now, said) = enforce(text).unwrap();
        let wanted = "# ours\n[access]\nlineage = \"any\" # wide\n\n[[cap]]\nname = \"a\"\nmode = \"enforce\" # try\n\
                      limit = 1\n\n[[cap]]\nname = \"b\"\n\n[[guard]]\nname = \"g\"\nmode = \"observe\"\n";
        assert_eq!(now, wanted);
        assert!(
            said.contains("cap a") && said.contains("access.lineage = \"any\""),
            "{said}"
        );
        assert!(enforce(wanted).unwrap().1.contains("no observed rules"));
    }

    #[test]
    fn a_section_stands_before_or_without_the_other() {
        for (text, wanted) in [
            (
                "[access.observe]\nlineage = \"any\"",
                "[access]\nlineage = \"any\"",
            ),
            (
                "[access.observe]\nlineage = \"any\"\n[access]",
                "[access]\nlineage = \"any\"\n",
            ),
        ] {
            assert_eq!(enforce(text).unwrap().0, wanted);
        }
    }

    #[test]
    fn what_cannot_be_edited_by_lines_is_left_alone() {
        for text in [
            "access.observe.lineage = \"any\"\n",
            "access = {lineage = \"direct\", observe = {lineage = \"any\"}}\n",
            "cap = [{name = \"a\", mode = \"observe\"}]\n",
            "x = \"\"\"\n[access.observe]\n\"\"\"\n[[cap]]\nmode = \"observe\"\nname = \"\"\"\n[access]\n\"\"\"\n",
            "not toml",
        ] {
            assert!(enforce(text).is_err(), "{text}");
        }
    }
}
