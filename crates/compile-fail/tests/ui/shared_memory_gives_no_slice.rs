use portolan::SharedMemory;

fn look(memory: &SharedMemory) -> u8 {
    memory[0]
}

fn main() {
    let _ = look;
}
