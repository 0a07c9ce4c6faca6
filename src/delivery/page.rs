//! The size of a page of a list: a page is in memory as a whole.

/// Octets of bodies after which a page ends. A page has at least one entry.
const BYTES_MAX: i64 = 4 << 20;

/// Returns the number of entries, of these sizes, that make a page of at most `limit`.
pub(super) fn count_fitting(sizes: &[i64], limit: u32) -> usize {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut bytes = 0;
    let fits = |size: &&i64| {
        let fits = bytes < BYTES_MAX;
        bytes += **size;
        fits
    };
    sizes.iter().take(limit).take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_behind_the_entry_that_passes_the_bound() {
        const LARGE: i64 = 3 << 20;
        assert_eq!(count_fitting(&[], 5), 0);
        assert_eq!(count_fitting(&[1, 1, 1], 2), 2);
        assert_eq!(count_fitting(&[LARGE; 5], 5), 2);
        assert_eq!(count_fitting(&[10 << 20, 0], 5), 1);
        assert_eq!(count_fitting(&[0, BYTES_MAX, 0], 5), 2);
    }
}
