use portolan::datagram::Arrival;
use portolan::software::survey::SurveyedWay;

fn text(arrival: &Arrival, way: &SurveyedWay) -> [&'static str; 2] {
    let arrival = match arrival {
        Arrival::Asked { .. } => "asked",
        Arrival::Failed(_) => "failed",
        Arrival::Datagram { .. } => "a datagram",
    };
    let way = match way {
        SurveyedWay::Memory => "memory",
        SurveyedWay::Rings { .. } => "rings",
        SurveyedWay::Socket { .. } => "a socket",
    };
    [arrival, way]
}

fn main() {
    let _ = text;
}
