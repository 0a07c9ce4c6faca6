-- Compact rows have the generations of a translated call in the word of its method. Texts are read with one statement
-- on both databases.
ALTER TABLE structure_events_1 ADD COLUMN bridged TEXT;
