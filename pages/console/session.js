// The page's half of its session, which lets it be loaded again. It opens nothing without the other half, a cookie that no
// script can read, and it is kept for this tab and this origin only. The token itself is never kept.

const NAME = "a2a-console-session";

/** The half that is kept; `null`: there is none, or the browser keeps nothing. */
export function kept() {
  try {
    return sessionStorage.getItem(NAME);
  } catch {
    return null;
  }
}

/** Keeps this half, or none. */
export function keep(half) {
  try {
    if (half === null) sessionStorage.removeItem(NAME);
    else sessionStorage.setItem(NAME, half);
  } catch {
    // Loading the page again will ask for the token.
  }
}
