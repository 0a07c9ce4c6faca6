//! House rules as a test: the walls between the rooms, one home for each table and key, sizes and names,
//! documents that agree with the code. Standard library only.

#![expect(
    clippy::unwrap_used,
    reason = "a file that cannot be read fails the test"
)]

mod imports;
mod pages;
mod promises;
mod references;
mod shapes;
mod tree;
mod walls;
