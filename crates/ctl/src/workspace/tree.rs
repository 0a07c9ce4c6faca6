//! `a2a-gateway workspace tree`: the hierarchy as lines.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::client::ReadFlags;
use super::super::complete;
use super::super::failure::Failure;
use super::super::table::{align_rows, format_cell, format_cells, format_json, format_state};
use super::all_workspaces;

/// `a2a-gateway workspace tree`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// Only this workspace and those below it
    #[arg(add = complete::by_workspace())]
    id: Option<String>,
    /// Only workspaces of this org
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    #[command(flatten)]
    flags: ReadFlags,
}

/// Workspaces by their place.
pub(super) struct Tree {
    all: BTreeMap<String, Value>,
    below: BTreeMap<String, Vec<String>>,
}

impl Tree {
    /// Sorts workspaces by their parents.
    pub(super) fn new(workspaces: Vec<Value>) -> Self {
        let mut all = BTreeMap::new();
        let mut below: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for workspace in workspaces {
            let id = format_cell(&workspace["id"]);
            if let Some(parent) = workspace["parent_id"].as_str() {
                below.entry(parent.to_owned()).or_default().push(id.clone());
            }
            all.insert(id, workspace);
        }
        Self { all, below }
    }

    /// Returns the workspaces without a parent that is there. One in a circle, which only a change of the table could
    /// make, is below none of them.
    fn roots(&self) -> Vec<&str> {
        let is_root = |workspace: &Value| {
            let parent = workspace["parent_id"].as_str();
            parent.is_none_or(|parent| !self.all.contains_key(parent))
        };
        let roots = self.all.iter().filter(|(_, workspace)| is_root(workspace));
        roots.map(|(id, _)| id.as_str()).collect()
    }

    fn children(&self, id: &str) -> &[String] {
        self.below.get(id).map_or(&[], Vec::as_slice)
    }

    /// Returns the children of a workspace that is below `above`, without those that would close a circle.
    fn children_below<'t>(&'t self, id: &str, above: &[&str]) -> Vec<&'t str> {
        let is_new = |child: &&str| *child != id && !above.contains(child);
        let children = self.children(id).iter().map(String::as_str);
        children.filter(is_new).collect()
    }

    /// Returns the workspaces below one, nearest first.
    pub(super) fn descendants<'t>(&'t self, id: &'t str) -> Vec<&'t str> {
        let mut seen = BTreeSet::from([id]);
        let mut found = Vec::new();
        let mut level = vec![id];
        while !level.is_empty() {
            let next = level.iter().flat_map(|id| self.children(id));
            level = next
                .map(String::as_str)
                .filter(|id| seen.insert(id))
                .collect();
            found.extend(&level);
        }
        found
    }

    /// Returns a workspace as JSON with those below it.
    fn to_json<'t>(&'t self, id: &'t str, above: &mut Vec<&'t str>) -> Value {
        let mut workspace = self.all.get(id).cloned().unwrap_or_default();
        let children = self.children_below(id, above);
        above.push(id);
        let nested = children.iter().map(|child| self.to_json(child, above));
        workspace["children"] = nested.collect();
        above.pop();
        workspace
    }

    /// Adds the lines of a workspace and of those below it. `stem` stands before its children.
    fn add_lines<'t>(
        &'t self,
        id: &'t str,
        (mark, stem): (&str, &str),
        above: &mut Vec<&'t str>,
        lines: &mut Vec<Vec<String>>,
    ) {
        let workspace = self.all.get(id).unwrap_or(&Value::Null);
        let mut name = format_cell(&workspace["name"]);
        if above.is_empty()
            && let Some(parent) = workspace["parent_id"].as_str()
        {
            name = format!("{name} (its parent {parent} is not here)");
        }
        let [status, org] = format_cells(workspace, ["status", "org"]);
        let state = format_state(workspace);
        lines.push(vec![format!("{mark}{id}"), status, state, org, name]);
        let children = self.children_below(id, above);
        above.push(id);
        for (place, child) in children.iter().enumerate() {
            let (own, further) = match place + 1 == children.len() {
                true => ("└─ ", "   "),
                false => ("├─ ", "│  "),
            };
            let marks = (&*format!("{stem}{own}"), &*format!("{stem}{further}"));
            self.add_lines(child, marks, above, lines);
        }
        above.pop();
    }

    fn format_text(&self, roots: &[&str]) -> String {
        let mut lines = Vec::new();
        for root in roots {
            self.add_lines(root, ("", ""), &mut Vec::new(), &mut lines);
        }
        align_rows(&lines)
    }
}

pub(super) async fn draw_tree(arguments: &Arguments) -> Result<String, Failure> {
    let client = arguments.flags.gateway.build_client()?;
    let tree = Tree::new(all_workspaces(&client, arguments.org.as_deref(), &[]).await?);
    let roots = match &arguments.id {
        Some(id) if tree.all.contains_key(id) => vec![id.as_str()],
        Some(id) => {
            let complaint = format!("there is no workspace {id}, or it is not of this org");
            return Err(Failure::new(complaint));
        }
        None => tree.roots(),
    };
    if arguments.flags.json {
        let nested = roots.iter().map(|id| tree.to_json(id, &mut Vec::new()));
        return Ok(format_json(&nested.collect()));
    }
    if roots.is_empty() {
        return Ok("no workspace fits\n".to_owned());
    }
    Ok(tree.format_text(&roots))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tree(places: &[(&str, Option<&str>)]) -> Tree {
        let workspace = |(id, parent): &(&str, Option<&str>)| json!({"id": id, "name": id.to_uppercase(), "parent_id": parent, "org": "o", "status": "online"});
        Tree::new(places.iter().map(workspace).collect())
    }

    #[test]
    fn the_hierarchy_is_drawn_with_its_branches() {
        let places = [
            ("a", None),
            ("b", Some("a")),
            ("c", Some("b")),
            ("d", Some("a")),
            ("e", Some("gone")),
        ];
        let tree = tree(&places);
        let expected = "\
a         online  -  o  A
├─ b      online  -  o  B
│  └─ c   online  -  o  C
└─ d      online  -  o  D
e         online  -  o  E (its parent gone is not here)
";
        let drawn = tree.format_text(&tree.roots());
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeezed(&drawn), squeezed(expected), "{drawn}");
        assert_eq!(tree.descendants("a"), ["b", "d", "c"]);
        let nested = tree.to_json("a", &mut Vec::new());
        assert_eq!(nested["children"][0]["children"][0]["id"], "c");
    }

    #[test]
    fn a_circle_ends() {
        let tree = tree(&[("a", Some("b")), ("b", Some("a"))]);
        assert_eq!(tree.descendants("a"), ["b"]);
        assert_eq!(tree.format_text(&["a"]).lines().count(), 2);
    }
}
