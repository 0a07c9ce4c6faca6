//! The second circle: cases that need more than Redis and PostgreSQL, or break them. Each module is a part of
//! `scripts/test`, by its name; `scripts/test` alone leaves them out.

mod balancers;
mod browser;
mod faults;
mod prometheus;
mod verifiers;
