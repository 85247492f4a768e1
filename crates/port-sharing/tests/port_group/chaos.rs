//! Members that join, leave and claim names in random order, compared with a model of the owners.

use std::collections::BTreeMap;

use super::harness::*;

/// Maximum number of members at a time.
const MEMBERS_MAX: usize = 8;
/// Names to claim. They are few, so that members compete.
const NAMES: u64 = 12;
const STEPS: usize = 250;

/// A pseudo-random generator (xorshift64*). Except for timing, a run is determined by its seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

/// Claims a name and checks the answer against the model.
fn claim(member: &Member, name: &str, owners: &mut BTreeMap<String, u8>) {
    let own = member.group.block().index();
    match owners.get(name) {
        Some(owner) if *owner != own => {
            assert_eq!(
                member.claim(name),
                format!("taken by {owner}"),
                "{name} has an owner"
            );
        }
        _ => {
            // The coordinator may not have noticed yet that its last owner is gone.
            eventually(name, || member.claim(name) == "yours");
            owners.insert(name.to_owned(), own);
        }
    }
}

fn run(seed: u64) {
    let mut chance = Chance(seed);
    let config = config();
    let mut members = vec![Member::join(&config).unwrap()];
    let mut owners = BTreeMap::new();
    for step in 0..STEPS {
        let chosen = chance.below(members.len() as u64) as usize;
        match chance.below(10) {
            0..=1 if members.len() < MEMBERS_MAX => {
                let newcomer = Member::join(&config).expect("a place in the group");
                let block = newcomer.group.block();
                assert!(
                    members.iter().all(|member| member.group.block() != block),
                    "seed {seed}, step {step}: block {block} given twice"
                );
                members.push(newcomer);
            }
            2 if members.len() > 1 => {
                let gone = members.swap_remove(chosen);
                owners.retain(|_, owner| *owner != gone.group.block().index());
            }
            3 if members.len() > 1 => {
                // Kills the coordinator, whichever it is, and claims at once.
                let gone = members.swap_remove(the_coordinator(&members));
                owners.retain(|_, owner| *owner != gone.group.block().index());
                drop(gone);
                let name = format!("name-{}", chance.below(NAMES));
                claim(&members[0], &name, &mut owners);
            }
            _ => {
                let name = format!("name-{}", chance.below(NAMES));
                claim(&members[chosen], &name, &mut owners);
            }
        }
    }
    // Every member knows every owner.
    for (name, owner) in &owners {
        for member in &members {
            assert_eq!(
                member.ask(&format!("owner {name}")),
                owner.to_string(),
                "seed {seed}"
            );
        }
    }
    let coordinator = the_coordinator(&members);
    eventually("farewells", || {
        members[coordinator].group.status().members.len() == members.len()
    });
}

#[test]
fn claims_stay_exclusive_and_blocks_unique_while_members_join_and_leave() {
    std::thread::scope(|scope| {
        for seed in [0x5eed, 0xcafe, 0xf00d, 0xbead] {
            scope.spawn(move || run(seed));
        }
    });
}
