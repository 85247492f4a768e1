//! Users whose numbers this user namespace does not know (user_namespaces(7)).

/// Whether a user's number is how this user namespace names all whom it does not know.
#[must_use]
pub fn stands_for_others(uid: u32) -> bool {
    let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    let overflow = overflow.and_then(|text| text.trim().parse().ok());
    let map = || std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    uid == overflow.unwrap_or(OVERFLOW_UID) && !is_whole(&map())
}

/// What stands for users without a number, unless the machine has another (user_namespaces(7)).
pub(super) const OVERFLOW_UID: u32 = 65_534;
/// How many users there are: the last number stands for none.
const USERS: u64 = u32::MAX as u64;

/// Whether a namespace's map has a number for every user, as the machine's first namespace has: the overflow user id is
/// a user's own there. Lines are the first number within, the first without, and how many follow each other.
fn is_whole(uid_map: &str) -> bool {
    let count = |line: &str| line.split_whitespace().nth(2)?.parse::<u32>().ok();
    let counts: Option<Vec<u32>> = uid_map.lines().map(count).collect();
    counts.is_some_and(|counts| counts.into_iter().map(u64::from).sum::<u64>() == USERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_of_all_users_leaves_none_without_a_number() {
        assert!(is_whole("         0          0 4294967295\n"));
        assert!(is_whole("0 0 1000\n1000 1000 4294966295\n"));
        for partial in [
            "",
            "1000 1000 1\n",
            "0 100000 65536\n",
            "65534 65534 1\n",
            "0 0 many",
            "0",
        ] {
            assert!(!is_whole(partial), "{partial:?}");
        }
    }
}
