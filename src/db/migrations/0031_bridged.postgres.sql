-- The generations between which a call was translated, the caller's first; NULL where it was not.
ALTER TABLE structure_events ADD COLUMN bridged TEXT;
