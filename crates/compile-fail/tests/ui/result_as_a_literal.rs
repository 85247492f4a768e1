use portolan::{Buffer, Done, Error, Step};

fn done(buffer: Buffer) -> Done {
    Done { buffer, more: Box::default(), length: 0, immediate: None }
}

fn step(error: Error) -> Step {
    let Error { step, cause: _, context: _ } = error;
    step
}

fn main() {
    let _ = (done, step);
}
