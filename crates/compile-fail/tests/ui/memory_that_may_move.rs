use portolan::Buffer;

fn main() {
    let _ = Buffer::of([7; 64]);
}
