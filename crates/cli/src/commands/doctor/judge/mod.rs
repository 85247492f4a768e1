//! Derives findings from facts, without access to the machine.

mod kernel;
mod local;
mod network;
mod software;
#[cfg(test)]
mod tests;

use super::facts::Facts;
use super::finding::{Finding, Found, Severity};

/// All findings, problems last.
pub(super) fn judge(facts: &Facts) -> Vec<Found> {
    let mut findings = Findings::default();
    if let Some(Err(why)) = &facts.provider {
        findings.problem(Finding::new(
            "provider-unknown",
            why,
            "unset PORTOLAN_PROVIDER",
        ));
    }
    network::judge(facts, &mut findings);
    kernel::judge(facts, &mut findings);
    software::judge(facts, &mut findings);
    local::judge(facts, &mut findings);
    network::judge_destination(facts, &mut findings);
    let mut found = findings.0;
    found.sort_by_key(|found| found.severity);
    found
}

#[derive(Debug, Default)]
struct Findings(Vec<Found>);

impl Findings {
    fn problem(&mut self, finding: Finding) {
        self.add(Severity::Problem, finding);
    }

    fn note(&mut self, finding: Finding) {
        self.add(Severity::Note, finding);
    }

    fn has(&self, code: &str) -> bool {
        self.0.iter().any(|found| found.finding.code == code)
    }

    /// A problem if it affects the provider that would be used, otherwise a note.
    fn problem_if(&mut self, concerns: bool, finding: Finding) {
        let severity = if concerns {
            Severity::Problem
        } else {
            Severity::Note
        };
        self.add(severity, finding);
    }

    fn add(&mut self, severity: Severity, finding: Finding) {
        match self.0.iter_mut().find(|found| found.finding == finding) {
            // Keep the higher severity of a finding.
            Some(known) => known.severity = known.severity.max(severity),
            None => self.0.push(Found { severity, finding }),
        }
    }
}
