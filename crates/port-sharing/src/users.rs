//! Users that this user namespace does not map (user_namespaces(7)).

/// Whether this user namespace uses the number for all users that it does not map.
#[must_use]
pub fn stands_for_others(uid: u32) -> bool {
    let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    let overflow = overflow.and_then(|text| text.trim().parse().ok());
    let map = || std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    uid == overflow.unwrap_or(OVERFLOW_UID) && !is_whole(&map())
}

/// The default number of unmapped users (user_namespaces(7)).
pub(super) const OVERFLOW_UID: u32 = 65_534;
/// Number of users; the last number is not a user.
const USERS: u64 = u32::MAX as u64;

/// Whether a namespace's map covers every user, as in the machine's first namespace. There the overflow user id is an
/// ordinary user. Each line has the first number inside, the first outside, and the count.
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
