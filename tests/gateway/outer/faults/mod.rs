//! Outages, failovers, kills and floods, with stores, poolers and clocks of their own; and every command of the program.

mod commands;
mod failover;
mod floods;
mod kills;
mod learned_limit;
mod outages;
mod poolers;
mod replicas;
mod store_faults;
mod stores;
