-- One row: grows with each invalidation that a replica could not publish. See src/coherence/gaps.rs.
CREATE TABLE coherence_gaps (
    id    BIGINT PRIMARY KEY,
    noted BIGINT NOT NULL
);
