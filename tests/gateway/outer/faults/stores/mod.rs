//! The two stores while their servers fail.

mod cluster;
mod db_outages;
mod shared_outages;

use crate::stores::*;
