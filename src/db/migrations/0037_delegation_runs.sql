-- The run that a delegation serves, as JSON; NULL: its request named none.
ALTER TABLE delegations ADD COLUMN run TEXT;
